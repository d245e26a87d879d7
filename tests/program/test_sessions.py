"""Sessions: what the checker refuses, what the emitter makes of drawn flows, and what it leaves alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from flowrl.compiler.emit.program import emit
from flowrl.compiler.emit.sessions import MOST_TAKES
from flowrl.diag.diagnostic import InternalError
from flowrl.execution.contract import Firing
from flowrl.execution.executor import Executor
from flowrl.execution.steady import steady
from flowrl.graph.graph import Graph
from flowrl.plan.plan import Pool, StageRun
from flowrl.program.check import check
from flowrl.program.program import Instruction, InstructionKind, Program, Rows, Stream
from tests.compiler.emit.graphs import GPU_ROLES, host_pool, make_pool, make_ppo, one_pool, split_pools
from tests.compiler.flows import GRPO, PPO, compiled

RUN = StageRun(steps=6, checkpoint_every_steps=3)


def session(*parts: str) -> Program:
    """A stream of one role: `take 0 2` takes rows 0 to 2, `take 2 -` the rest; other words are kinds."""
    count = sum(part.startswith("take") for part in parts)
    taken = 0
    own: list[Instruction] = []
    for place, part in enumerate(parts):
        kind, *rows = part.split()
        more = {}
        if kind == "take":
            stop = None if rows[1] == "-" else int(rows[1])
            more = {"rows": Rows(start=int(rows[0]), stop=stop), "firing": taken, "firings": count}
            taken += 1
        own.append(Instruction(id=f"{part} {place}", kind=InstructionKind(kind), pool="p", role="r", op="r.g", **more))
    return Program(streams=(Stream(pool="p", instructions=tuple(own)),), channels=())


@pytest.mark.parametrize(
    "parts",
    [
        ("open", "take 0 -", "close"),
        ("load", "open", "take 0 2", "take 2 4", "take 4 -", "close", "run", "offload"),
        ("pause", "resume", "open", "take 0 2", "take 2 -"),
    ],
)
def test_what_is_right(parts: Sequence[str]) -> None:
    check(session(*parts))


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (("take 0 -", "close"), "takes rows of a session that is not open"),
        (("open", "take 0 2", "close"), "does not leave the rest to the last"),
        (("open", "take 0 2", "take 3 -", "close"), "takes rows from 3, 2 are next"),
        (("open", "take 0 2", "close", "take 2 -"), "closes a session of which rows have not been taken"),
        (("open", "close"), "closes a session of which rows have not been taken"),
        (("open", "take 0 -"), "is not closed"),
        (("open", "open", "take 0 -", "close"), "opens a session beside one that is open"),
        (("load", "open", "take 0 -", "offload", "close"), "works while the session of its role is open"),
        (("open", "run", "take 0 -", "close"), "works while the session of its role is open"),
        (("pause", "open", "resume", "take 0 -"), "opens a session beside one that is paused"),
        (("pause", "take 0 -", "resume"), "takes rows of a session that is not open"),
        (("resume", "open", "take 0 -", "close"), "resumes what is not paused"),
        (("pause", "resume", "open", "take 0 -", "close"), "pauses what is not open"),
    ],
)
def test_what_is_refused(parts: Sequence[str], said: str) -> None:
    with pytest.raises(InternalError, match=said):
        check(session(*parts))


def in_parts(graph: Graph, takes: int) -> Graph:
    return replace(graph, schedule=replace(graph.schedule, takes=takes))


def colocated_but_reference() -> tuple[Pool, ...]:
    return (
        make_pool("all", ("actor_train", "actor_infer", "critic"), offloaded=("actor_train", "actor_infer", "critic")),
        make_pool("reference", ["reference"]),
        host_pool(),
    )


def staying() -> tuple[Pool, ...]:
    return (make_pool("all", GPU_ROLES), host_pool())


POOLS = (one_pool, split_pools, colocated_but_reference, staying)


@settings(max_examples=50, deadline=None)
@given(
    flow=st.sampled_from((GRPO, PPO)),
    pools=st.sampled_from(POOLS),
    takes=st.integers(1, MOST_TAKES),
    lag=st.integers(0, 2),
    updates=st.sampled_from((1, 2, 4)),
    partial=st.booleans(),
    data=st.data(),
)
def test_drawn_flows_run_in_parts_as_they_do_whole(
    flow: str,
    pools: Callable[[], tuple[Pool, ...]],
    takes: int,
    lag: int,
    updates: int,
    partial: bool,
    data: st.DataObject,
) -> None:
    """Live (emit checks it), every row taken once, whatever reads parts reads all of them, and with constant durations
    of equal sums never slower: parts give up waits and add none, where one thing follows another in a lane."""
    text = flow.replace("updates: 1", f"updates: {updates}").replace("updates: 2", f"updates: {updates}")
    partial = partial and lag > 0
    text += f"schedule: {{max_lag: {lag}, partial_rollout: {str(partial).lower()}}}\n"
    graph = compiled(text)
    closed = replace(graph, schedule=replace(graph.schedule, partial_rollout=False))
    whole = emit(closed, pools(), RUN)
    parts = emit(in_parts(graph, takes), pools(), RUN)
    kinds = {i.kind for i in parts.instructions}
    event(f"{len([i for i in parts.instructions if i.kind is InstructionKind.TAKE])} takes")
    if InstructionKind.TAKE not in kinds:
        assert parts == whole
        return
    event("paused" if InstructionKind.PAUSE in kinds else "closed")
    ops = {i.op for i in parts.instructions if i.firings > 1 and i.kind is InstructionKind.RUN}
    for op in ops - {"actor_train.update", "critic.update"}:
        own = [i.rows for i in parts.instructions if i.op == op]
        assert [rows.start for rows in own] == [0, *(rows.stop for rows in own[:-1])]
        assert own[-1].stop is None
    seconds = {i.id: data.draw(st.floats(0.1, 5.0), label=i.id) for i in whole.instructions}
    assert steady(parts, apart(parts, seconds)).step_seconds <= steady(whole, seconds).step_seconds * (1 + 1e-9)


def apart(program: Program, seconds: dict[str, float]) -> dict[str, float]:
    """Equal parts of what each op takes whole."""
    found: dict[str, float] = {}
    for i in program.instructions:
        if i.id in seconds:
            found[i.id] = seconds[i.id]
        elif i.kind in (InstructionKind.RUN, InstructionKind.TAKE):
            found[i.id] = seconds[f"run {i.op}"] / i.firings
        else:
            found[i.id] = 0.0
    return found


def test_scoring_overlaps_generation() -> None:
    """Ten seconds of generation in two parts, then four of scoring in two: the last part is scored in two seconds."""
    graph = compiled(GRPO)
    pools = (make_pool("rollout", ["actor_infer"]), make_pool("train", ["actor_train"]), host_pool())
    seconds = {i.id: 0.0 for i in emit(graph, pools, RUN).instructions}
    seconds |= {"run actor_infer.generate": 10.0, "run reward.score": 4.0, "run actor_train.update": 3.0}
    assert steady(emit(graph, pools, RUN), seconds).step_seconds == pytest.approx(17.0)
    parts = emit(in_parts(graph, 2), pools, RUN)
    assert steady(parts, apart(parts, seconds)).step_seconds == pytest.approx(15.0)


def test_one_colocated_pool_has_parts_for_the_host_alone() -> None:
    """Roles that leave their devices are not called in between."""
    parts = emit(in_parts(make_ppo(updates=2), 4), one_pool(), RUN)
    split = {i.op for i in parts.instructions if i.firings > 1 and i.pool == "all"}
    assert split == {"actor_infer.generate", "actor_train.update", "critic.update"}
    assert {i.op for i in parts.instructions if i.firings > 1 and i.pool == "host"} == {"reward.score"}


def test_an_idle_session_passes_its_tokens_on() -> None:
    """The epilogue validates and generates nothing for training."""
    parts = emit(in_parts(make_ppo(updates=2), 4), split_pools(), RUN)
    executor = Executor(parts, 2)
    worked: list[Firing] = []
    while not executor.done:
        for firing in executor.ready():
            executor.start(firing)
            worked += [] if firing.idle else [firing]
        for firing in executor.running():
            executor.complete(firing)
    takes = [f.step for f in worked if f.instruction.kind is InstructionKind.TAKE]
    assert sorted(takes) == [1] * 4 + [2] * 4
    assert {f.step for f in worked if f.instruction.op == "actor_infer.generate@val"} == {1, 3}
