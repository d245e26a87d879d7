"""The emitter: streams, rows, channels and cadences of flows whose right programs are known."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from flowrl.compiler.emit.program import emit
from flowrl.diag.diagnostic import InternalError
from flowrl.execution.contract import Firing
from flowrl.execution.executor import Executor
from flowrl.graph.graph import EdgeKind, Graph, Step
from flowrl.plan.plan import Pool, StageRun
from flowrl.program.check import check
from flowrl.program.program import Channel, ChannelKind, Instruction, Program
from tests.compiler.emit.graphs import (
    GPU_ROLES,
    data,
    host_pool,
    make_graph,
    make_op,
    make_pool,
    make_ppo,
    make_sft,
    one_pool,
    split_pools,
)

RUN = StageRun(steps=100, checkpoint_every_steps=20)


def _ids(program: Program, pool: str) -> list[str]:
    return [i.id for s in program.streams if s.pool == pool for i in s.instructions]


def _instruction(program: Program, id: str) -> Instruction:
    return next(i for i in program.instructions if i.id == id)


def test_ppo_on_one_pool_takes_turns() -> None:
    program = emit(make_ppo(updates=2), one_pool(), RUN)
    check(program)
    assert _ids(program, "all") == [
        "load actor_infer",
        "receive_weights actor_train => actor_infer",
        "run actor_infer.generate",
        "run actor_infer.generate@val",
        "offload actor_infer",
        "load reference",
        "run reference.log_probs",
        "offload reference",
        "load critic 1/2",
        "run critic.values",
        "offload critic 1/2",
        "load actor_train",
        "run actor_train.log_probs",
        "run actor_train.update 1/2",
        "run actor_train.update 2/2",
        "send_weights actor_train => actor_infer",
        "save actor_train",
        "offload actor_train",
        "load critic 2/2",
        "run critic.update 1/2",
        "run critic.update 2/2",
        "save critic",
        "offload critic 2/2",
    ]
    assert _ids(program, "host") == [
        "run data.train",
        "run data.val",
        "run reward.score",
        "run advantage.estimate",
        "run reward.score@val",
    ]


def test_only_roles_marked_offloaded_move() -> None:
    pools = (make_pool("all", GPU_ROLES, offloaded=["reference"]), host_pool())
    moved = [i for i in _ids(emit(make_ppo(), pools, RUN), "all") if "load " in i]
    assert moved == ["load reference", "offload reference"]


def test_role_alone_on_its_pool_stays() -> None:
    pools = (make_pool("infer", ["actor_infer"], offloaded=["actor_infer"]), *split_pools()[1:])
    assert not [i for i in _ids(emit(make_ppo(), pools, RUN), "infer") if "load " in i]


@pytest.mark.parametrize(("updates", "epochs"), [(1, 1), (4, 1), (4, 2), (1, 3)])
def test_rows_of_updates_cover_the_step_once_per_epoch(updates: int, epochs: int) -> None:
    program = emit(make_ppo(updates, epochs), split_pools(), RUN)
    own = [i for i in program.instructions if i.op == "actor_train.update"]
    assert [i.firing for i in own] == list(range(updates * epochs))
    prompts = [p for i in own for p in range(128)[i.rows.start : i.rows.stop]]
    assert prompts == list(range(128)) * epochs


def test_every_edge_has_its_channels_and_no_channel_lacks_an_edge() -> None:
    graph = make_ppo(updates=4, max_lag=1)
    program = emit(graph, split_pools(), RUN)
    firings = {op.id: op.firings for op in graph.ops}
    for edge in graph.edges:
        own = [c for c in program.channels if c.edge == edge.id]
        if edge.kind is EdgeKind.DATA:
            assert len(own) == firings[edge.source] * firings[edge.target]
            assert {c.fields for c in own} == {edge.fields}
        elif edge.kind is EdgeKind.WEIGHTS:
            assert [(c.initial_tokens, c.capacity) for c in own] == [(2, 3)]
        else:
            assert [c.kind for c in own] == [ChannelKind.ORDER]
    assert {c.edge for c in program.channels} == {edge.id for edge in graph.edges}


def test_two_edges_between_the_same_ops_get_two_channels() -> None:
    graph = make_sft()
    twice = replace(graph, edges=(*graph.edges, replace(graph.edges[0], id="second", fields=("y",))))
    program = emit(twice, (make_pool("train", ["actor_train"]), host_pool()), RUN)
    check(program)
    assert [c.id for c in program.channels] == [
        "data.train -> actor_train.update",
        "data.train -> actor_train.update #2",
    ]


def test_validation_is_seldom_and_once_more_at_the_end() -> None:
    program = emit(make_ppo(), split_pools(), RUN)
    for id in ("run data.val", "run actor_infer.generate@val", "run reward.score@val"):
        instruction = _instruction(program, id)
        assert (instruction.every_steps, instruction.epilogue) == (20, True), id
    assert _instruction(program, "receive_weights actor_train => actor_infer").epilogue
    assert not _instruction(program, "run actor_infer.generate").epilogue


def test_generator_that_only_validates_receives_as_seldom_as_it_works() -> None:
    graph = make_ppo()
    kept = [op for op in graph.ops if op.method == "update" or op.id.endswith("val") or op.id == "data.train"]
    ids = {op.id for op in kept}
    edges = [e for e in graph.edges if e.kind is EdgeKind.WEIGHTS or {e.source, e.target} <= ids]
    edges += [data("data.train", "actor_train.update"), data("data.train", "critic.update")]
    program = emit(make_graph(kept, edges, graph.step), one_pool(), RUN)
    for id in ("receive_weights actor_train => actor_infer", "load actor_infer", "offload actor_infer"):
        instruction = _instruction(program, id)
        assert (instruction.every_steps, instruction.epilogue) == (20, True), id
    assert _instruction(program, "send_weights actor_train => actor_infer").every_steps == 1


def test_metric_of_training_rows_read_seldom_is_no_validation() -> None:
    graph = make_ppo()
    ops = (*graph.ops, make_op("reward.score@extra", every_steps=5))
    edges = (*graph.edges, data("actor_infer.generate", "reward.score@extra"))
    program = emit(replace(graph, ops=ops, edges=edges), split_pools(), RUN)
    check(program)
    extra = _instruction(program, "run reward.score@extra")
    assert (extra.every_steps, extra.epilogue) == (5, False)


def test_critic_warm_up_holds_only_the_actor_back() -> None:
    graph = make_ppo()
    ops = tuple(replace(op, start_step=10) if op.id == "actor_train.update" else op for op in graph.ops)
    program = emit(replace(graph, ops=ops), split_pools(), RUN)
    check(program)
    late = {i.id for i in program.instructions if i.start_step == 10}
    assert late == {f"run actor_train.update {n}/4" for n in range(1, 5)}


def test_saves() -> None:
    program = emit(make_ppo(), split_pools(), RUN)
    assert [i.every_steps for i in program.instructions if i.kind == "save"] == [20, 20]
    only_last = emit(make_ppo(), split_pools(), StageRun(steps=70))
    assert [i.every_steps for i in only_last.instructions if i.kind == "save"] == [70, 70]


def test_supervised_flow() -> None:
    program = emit(make_sft(), (make_pool("train", ["actor_train"]), host_pool()), RUN)
    check(program)
    assert _ids(program, "train") == ["run actor_train.update", "save actor_train"]
    assert not any(i.epilogue for i in program.instructions)


def test_lanes_with_nothing_between_them_are_tied() -> None:
    """Data and trainers that share no edge must still stay within two steps of each other."""
    ops = [make_op(id) for id in ("data.train", "actor_train.update", "reference.log_probs")]
    graph = make_graph(ops, [data("data.train", "actor_train.update")], Step(prompts=8))
    pools = (make_pool("train", ["actor_train"]), make_pool("ref", ["reference"]), host_pool())
    program = emit(graph, pools, RUN)
    check(program)
    executor = Executor(program, 50)
    while ready := [f for f in executor.ready() if f.instruction.pool != "ref"]:
        executor.start(ready[0])
        executor.complete(ready[0])
    assert {f.step for f in executor.ready()} == {1}
    assert executor.tokens("order save actor_train -> run reference.log_probs") == 2


def test_role_without_a_pool_and_cycles_are_our_faults() -> None:
    with pytest.raises(InternalError, match="no pool holds role `reference`"):
        emit(make_ppo(), (make_pool("all", ("actor_train", "actor_infer", "critic")), host_pool()), RUN)
    graph = make_ppo()
    cyclic = replace(graph, edges=(*graph.edges, data("advantage.estimate", "actor_infer.generate")))
    with pytest.raises(InternalError, match="cycle within a step"):
        emit(cyclic, one_pool(), RUN)


def _partition(names: Sequence[str], places: Sequence[int], moved: Sequence[bool]) -> tuple[Pool, ...]:
    pools: list[Pool] = []
    for place in sorted(set(places)):
        own = [name for name, at in zip(names, places, strict=True) if at == place]
        offloaded = [name for name, at, off in zip(names, places, moved, strict=True) if at == place and off]
        pools.append(make_pool(f"pool{place}", own, offloaded))
    return (*pools, host_pool())


def _walk(program: Program, steps: int, data_: st.DataObject) -> list[Firing]:
    """Complete firings in a random order; gives them in the order in which they started."""
    executor = Executor(program, steps)
    started: list[Firing] = []
    while not executor.done:
        for firing in executor.ready():
            executor.start(firing)
            started.append(firing)
        executor.complete(data_.draw(st.sampled_from(executor.running())))
    return started


@settings(deadline=None, max_examples=60)
@given(
    places=st.lists(st.integers(0, 3), min_size=4, max_size=4),
    moved=st.lists(st.booleans(), min_size=4, max_size=4),
    updates=st.sampled_from([1, 2, 4]),
    epochs=st.integers(1, 2),
    max_lag=st.integers(0, 2),
    data_=st.data(),
)
def test_any_placement_of_ppo_is_live_and_keeps_the_order_of_the_flow(
    places: list[int], moved: list[bool], updates: int, epochs: int, max_lag: int, data_: st.DataObject
) -> None:
    graph = make_ppo(updates, epochs, max_lag)
    program = emit(graph, _partition(GPU_ROLES, places, moved), RUN)
    check(program)
    started = _walk(program, 3, data_)
    when = {(f.instruction.id, f.step): place for place, f in enumerate(started)}
    for step in (1, 2, 3):
        _assert_order_of_step(graph, program, when, step)
        if step > max_lag + 1:
            send = when["send_weights actor_train => actor_infer", step - 1 - max_lag]
            assert send < when["receive_weights actor_train => actor_infer", step]


def _assert_order_of_step(graph: Graph, program: Program, when: dict[tuple[str, int], int], step: int) -> None:
    """Producers before consumers, and readers of a role before its first update."""
    for edge in graph.edges:
        if edge.kind is EdgeKind.WEIGHTS:
            continue
        sources = [i.id for i in program.instructions if i.op == edge.source]
        targets = [i.id for i in program.instructions if i.op == edge.target]
        assert max(when[id, step] for id in sources) < min(when[id, step] for id in targets)


def test_same_input_gives_the_same_program() -> None:
    assert emit(make_ppo(), split_pools(), RUN) == emit(make_ppo(), split_pools(), RUN)


def test_channel_ids_are_readable() -> None:
    def weights(channel: Channel) -> bool:
        return channel.kind is ChannelKind.WEIGHTS

    program = emit(make_ppo(updates=1), split_pools(), RUN)
    assert [c.id for c in filter(weights, program.channels)] == ["actor_train => actor_infer"]
    assert "actor_infer.generate -> actor_train.update" in {c.id for c in program.channels}
