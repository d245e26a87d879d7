"""Versions within a step (`every_updates`) and interactions: what the program makes of them and the executor does."""

from __future__ import annotations

from collections import deque

import pytest
from msgspec.structs import replace

from flowrl.compiler.emit.program import emit
from flowrl.diag.diagnostic import InternalError
from flowrl.execution.executor import Executor
from flowrl.graph.graph import Edge, EdgeKind, Graph, Step
from flowrl.plan.plan import StageRun
from flowrl.program.program import ChannelKind, InstructionKind, Program
from tests.compiler.emit.graphs import data, make_graph, make_op, make_pool, make_ppo, split_pools, weights

RUN = StageRun(steps=6)


def published_often(updates: int, every: int, max_lag: int) -> Graph:
    graph = make_ppo(updates=updates, max_lag=max_lag)
    tokens = updates // every + max_lag
    edges = tuple(
        replace(e, every_updates=every, tokens=tokens) if e.kind is EdgeKind.WEIGHTS else e for e in graph.edges
    )
    return replace(graph, edges=edges)


def versions_taken(program: Program, steps: int) -> list[list[int]]:
    """Versions that the receiver takes in each step, in a run whose every choice among what is ready is the last."""
    executor = Executor(program, steps)
    channels = [c for c in program.channels if c.kind is ChannelKind.WEIGHTS]
    waiting = {c.id: deque([0] * c.initial_tokens) for c in channels}
    published, taken = 0, [list[int]() for _ in range(steps + 1)]
    while not executor.done:
        firing = executor.ready()[-1]
        executor.start(firing)
        instruction = firing.instruction
        if instruction.kind is InstructionKind.RECEIVE_WEIGHTS:
            taken[firing.step - 1] = [waiting[c.id].popleft() for c in channels]
        if instruction.kind is InstructionKind.SEND_WEIGHTS:
            published += 1
            (channel,) = (c for c in channels if c.source == instruction.id)
            waiting[channel.id].append(published)
        executor.complete(firing)
    return taken


@pytest.mark.parametrize(("updates", "every"), [(4, 4), (4, 2), (4, 1), (8, 2), (1, 1)])
@pytest.mark.parametrize("max_lag", [0, 1, 2, 3])
def test_the_receiver_is_as_many_versions_behind_as_the_lag_allows(updates: int, every: int, max_lag: int) -> None:
    """At the start of step s the trainer has published (s - 1) * p versions; the newest taken is max_lag older."""
    program = emit(published_often(updates, every, max_lag), split_pools(), RUN)
    per_step = updates // every
    for step, versions in enumerate(versions_taken(program, RUN.steps)[: RUN.steps], start=1):
        assert max(versions) == max(0, (step - 1) * per_step - max_lag)


def test_versions_are_sent_between_updates() -> None:
    program = emit(published_often(4, 2, 0), split_pools(), RUN)
    own = [i.id for s in program.streams for i in s.instructions if i.role == "actor_train"]
    assert own == [
        "run actor_train.log_probs",
        "run actor_train.update 1/4",
        "run actor_train.update 2/4",
        "send_weights actor_train => actor_infer 1/2",
        "run actor_train.update 3/4",
        "run actor_train.update 4/4",
        "send_weights actor_train => actor_infer 2/2",
        "save actor_train",
    ]


def debate() -> Graph:
    """Two generators with one environment."""
    ops = [make_op(id) for id in ("data.train", "env.reset", "alice.generate", "bob.generate", "env.step")]
    ops += [make_op("alice_adv.estimate"), make_op("alice_train.update")]
    edges = [
        data("data.train", "env.reset"),
        data("env.reset", "alice.generate"),
        data("env.reset", "bob.generate"),
        _talks("alice.generate", "env.step"),
        _talks("bob.generate", "env.step"),
        data("env.step", "alice_adv.estimate"),
        data("alice.generate", "alice_train.update"),
        data("alice_adv.estimate", "alice_train.update"),
        weights("alice_train", "alice"),
    ]
    return make_graph(ops, edges, Step(prompts=8))


def _talks(generator: str, env: str) -> Edge:
    edge = f"{generator} <-> {env}"
    return Edge(id=edge, kind=EdgeKind.INTERACTION, source=generator, target=env, origin=(edge,))


def test_an_interaction_is_emitted_as_runs_that_start_together() -> None:
    pools = (
        make_pool("one", ("alice", "alice_train"), offloaded=("alice",)),
        make_pool("two", ("bob",)),
        make_pool("host", ("env", "alice_adv"), devices=0, slots=4),
    )
    program = emit(debate(), pools, RUN)
    members = {"run alice.generate", "run bob.generate", "run env.step"}
    assert {frozenset(group) for group in program.together.values()} == {frozenset(members)}
    executor = Executor(program, 3)
    started: list[set[str]] = []
    while not executor.done:
        ready = executor.ready()
        started.append({firing.instruction.id for firing in ready} & members)
        for firing in ready:
            executor.start(firing)
        for firing in executor.running():
            executor.complete(firing)
    assert [each for each in started if each] == [members] * 4, "three steps and the epilogue"


def test_two_generators_of_an_interaction_on_one_pool_are_our_fault() -> None:
    pools = (
        make_pool("one", ("alice", "bob", "alice_train")),
        make_pool("host", ("env", "alice_adv"), devices=0, slots=4),
    )
    with pytest.raises(InternalError, match="start together and stand in one lane"):
        emit(debate(), pools, RUN)


def test_a_lag_longer_than_any_range_is_dealt_out_to_the_channels() -> None:
    lag = 10**30
    channels = [
        c for c in emit(published_often(4, 1, lag), split_pools(), RUN).channels if c.kind is ChannelKind.WEIGHTS
    ]
    assert [c.initial_tokens for c in channels] == [lag // 4 + 1] * 4
    assert [c.capacity for c in channels] == [lag // 4 + 2] * 4
