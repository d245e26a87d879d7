"""The steady state against the maximum cycle ratio of the event graph, found by going through every cycle."""

from __future__ import annotations

from itertools import pairwise, product

import networkx as nx
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from flowrl.compiler.emit.program import emit
from flowrl.diag.diagnostic import InternalError
from flowrl.execution.critical import critical_circle
from flowrl.execution.estimate import estimate
from flowrl.execution.simulate import simulate
from flowrl.execution.steady import steady
from flowrl.plan.plan import Estimate, StageRun
from flowrl.program.check import check
from flowrl.program.program import ChannelKind, Program
from tests.compiler.emit.graphs import make_ppo, make_sft, one_pool, split_pools
from tests.program.programs import make_program, programs


def _event_graph(program: Program, durations: dict[str, float]) -> nx.DiGraph:
    """Start of target in step k >= start of source in step k - tokens + seconds. Each arc is a node, so that parallel
    arcs stay apart. What starts together is one node, named by the smallest of its ids."""
    arcs: list[tuple[str, str, float, int]] = []
    for stream in program.streams:
        for lane in stream.lanes:
            arcs += [(a.id, b.id, durations[a.id], 0) for a, b in pairwise(lane)]
            arcs.append((lane[-1].id, lane[0].id, durations[lane[-1].id], 1))
    for c in (c for c in program.channels if c.kind is not ChannelKind.INTERACTION):
        arcs.append((c.source, c.target, durations[c.source], c.initial_tokens))
        arcs.append((c.target, c.source, 0.0, c.capacity - c.initial_tokens))
    graph = nx.DiGraph()
    for place, (source, target, seconds, tokens) in enumerate(arcs):
        graph.add_edge(_moment(program, source), place)
        graph.add_edge(place, _moment(program, target))
        graph.nodes[place].update(seconds=seconds, tokens=tokens)
    return graph


def _moment(program: Program, id: str) -> str:
    tied = nx.Graph((c.source, c.target) for c in program.channels if c.kind is ChannelKind.INTERACTION)
    return min(nx.node_connected_component(tied, id)) if id in tied else id


def _maximum_cycle_ratio(program: Program, durations: dict[str, float]) -> float:
    graph = _event_graph(program, durations)
    ratios: list[float] = []
    for cycle in nx.simple_cycles(graph):
        arcs = [graph.nodes[node] for node in cycle if isinstance(node, int)]
        ratios.append(sum(a["seconds"] for a in arcs) / sum(a["tokens"] for a in arcs))
    return max(ratios)


def _ratios_of(circle: tuple[str, ...], program: Program, durations: dict[str, float]) -> list[float]:
    """Ratios of all circles that go through these instructions in this order: arcs may be parallel."""
    graph = _event_graph(program, durations)
    circle = tuple(_moment(program, id) for id in circle)
    ways = [
        [graph.nodes[arc] for arc in set(graph.successors(a)) & set(graph.predecessors(b))]
        for a, b in pairwise([*circle, circle[0]])
    ]
    return [sum(a["seconds"] for a in way) / sum(a["tokens"] for a in way) for way in product(*ways)]


def _is_one_piece(program: Program) -> bool:
    graph = nx.Graph((c.source, c.target) for c in program.channels)
    for stream in program.streams:
        nx.add_path(graph, [i.id for i in stream.instructions])
    return nx.is_connected(graph)


@settings(deadline=None, max_examples=150)
@given(program=programs(max_links=4), seconds=st.lists(st.integers(0, 9), min_size=9, max_size=9))
def test_steady_state_is_the_maximum_cycle_ratio(program: Program, seconds: list[int]) -> None:
    try:
        check(program)
    except InternalError:
        assume(False)
    assume(_is_one_piece(program) and all(s.slots >= len(s.lanes) for s in program.streams))
    durations = {i.id: float(s) for i, s in zip(program.instructions, seconds, strict=False)}
    found = steady(program, durations)
    assert found.step_seconds == pytest.approx(_maximum_cycle_ratio(program, durations), rel=1e-6, abs=1e-9)
    if found.step_seconds > 0:
        circle = critical_circle(program, durations, found.step_seconds)
        assert found.step_seconds in map(pytest.approx, _ratios_of(circle, program, durations))


def test_period_of_several_steps() -> None:
    """A circle a → b → c with two tokens, of 3 + 3 + 1 s: 3.5 s a step, which takes two steps to come round."""
    links = [("a", "b", 2, 0), ("b", "c", 2, 0), ("c", "a", 2, 2)]
    found = steady(make_program([["a"], ["b"], ["c"]], links), {"a": 3.0, "b": 3.0, "c": 1.0})
    assert found.step_seconds == pytest.approx(3.5)


def _ppo_estimate(max_lag: int, split: bool) -> tuple[Estimate, Program]:
    graph = make_ppo(updates=2, max_lag=max_lag)
    program = emit(graph, split_pools() if split else one_pool(), StageRun(steps=100, checkpoint_every_steps=10))
    durations = {i.id: _seconds(i.id) for i in program.instructions}
    return estimate(program, durations, graph, response_tokens=(500, "given")), program


def _seconds(id: str) -> float:
    if id.startswith(("load", "offload")):
        return 0.5
    if "generate@val" in id:
        return 7.0
    return {"run actor_infer.generate": 20.0, "run actor_train.update 1/2": 5.0, "save actor_train": 4.0}.get(id, 1.0)


def test_colocated_step_is_the_sum_of_its_pool() -> None:
    found, program = _ppo_estimate(max_lag=0, split=False)
    plain = [i for i in program.instructions if i.pool == "all" and i.every_steps == 1]
    host_alone = 1.0  # advantage.estimate: the devices wait for it; the reward is scored beside reference.log_probs
    assert found.step_seconds == pytest.approx(sum(_seconds(i.id) for i in plain) + host_alone)
    assert found.busy["all"] == pytest.approx(1 - host_alone / found.step_seconds)
    assert sorted(s.instruction for s in found.timeline if s.pool == "all") == sorted(i.id for i in plain)
    assert found.samples_per_second == pytest.approx(1024 / found.step_seconds)
    assert found.tokens_per_second == pytest.approx(500 * 1024 / found.step_seconds)


def test_lag_hides_training_behind_generation() -> None:
    on_policy, _ = _ppo_estimate(max_lag=0, split=True)
    one_off, _ = _ppo_estimate(max_lag=1, split=True)
    assert on_policy.critical[0] == "receive_weights actor_train => actor_infer"
    assert "run actor_train.update 2/2" in on_policy.critical
    assert set(one_off.critical) == {
        "receive_weights actor_train => actor_infer",
        "run actor_infer.generate",
        "run actor_infer.generate@val",
    }
    assert one_off.step_seconds == pytest.approx(21.0)  # receive 1 s, generate 20 s, never waiting
    assert one_off.busy["infer"] == pytest.approx(1.0)
    assert on_policy.step_seconds > one_off.step_seconds
    timeline = [s.instruction for s in one_off.timeline]
    assert len(timeline) == len(set(timeline))


def test_validation_and_checkpoints_have_lines_of_their_own() -> None:
    found, _ = _ppo_estimate(max_lag=0, split=False)
    lines = {(line.what, line.inputs.get("every_steps")): line for line in found.lines}
    assert lines["checkpoint", 10].value == pytest.approx(4.0 + 1.0)
    assert lines["validation", 20].value == pytest.approx(7.0)
    assert lines["step", None].value == found.step_seconds
    assert not [s for s in found.timeline if "val" in s.instruction.split("@")[1:] or "save" in s.instruction]


@pytest.mark.parametrize("split", [False, True])
def test_time_of_the_run_is_that_of_simulating_all_of_it(split: bool) -> None:
    """The simulation has the start, the epilogue and every validation and checkpoint in it."""
    graph = make_ppo(updates=2)
    steps = 100
    program = emit(graph, split_pools() if split else one_pool(), StageRun(steps=steps, checkpoint_every_steps=10))
    durations = {i.id: _seconds(i.id) for i in program.instructions}
    lines = {line.what: line for line in estimate(program, durations, graph, steps=steps).lines}
    end = max(span.start_seconds + span.seconds for span in simulate(program, durations, steps).spans)
    assert lines["run"].value == pytest.approx(end, rel=0.01)


def test_flow_without_rollout_counts_no_response_tokens() -> None:
    graph = make_sft()
    program = emit(graph, (split_pools()[1], split_pools()[2]), StageRun(steps=5))
    found = estimate(program, {i.id: 0.25 for i in program.instructions}, graph)
    assert (found.step_seconds, found.samples_per_second, found.tokens_per_second) == (0.25, 512.0, 0.0)


def test_program_that_takes_no_time() -> None:
    graph = make_sft()
    program = emit(graph, (split_pools()[1], split_pools()[2]), StageRun(steps=5))
    found = estimate(program, {i.id: 0.0 for i in program.instructions}, graph)
    assert (found.step_seconds, found.samples_per_second, found.busy) == (0.0, 0.0, {"train": 0.0, "host": 0.0})
