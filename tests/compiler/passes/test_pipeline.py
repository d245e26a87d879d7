"""The pipeline: order by contract, the verifier between passes, instruments that only watch."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from flowrl.compiler.passes.infer_types import infer_types
from flowrl.compiler.passes.instruments import Dump, Timing
from flowrl.compiler.passes.pipeline import PASSES, Pass, run_passes
from flowrl.diag.diagnostic import InternalError
from flowrl.graph.graph import Graph
from flowrl.graph.text import parse_graph, without_spans
from flowrl.graph.verify import verify
from tests.compiler.flows import GRPO, PPO, lowered


def test_every_pass_says_its_contract_and_shows_before_and_after() -> None:
    for step in PASSES:
        text = step.run.__doc__ or ""
        assert all(word in text for word in ("before:", "after:", "Requires:", "Ensures:")), step.name
        assert step.run.__module__.rpartition(".")[2] == step.name


def test_required_passes_stand_before() -> None:
    names = [step.name for step in PASSES]
    for index, step in enumerate(PASSES):
        assert set(step.requires) <= set(names[:index])


def test_a_pass_too_early_is_our_fault() -> None:
    with pytest.raises(InternalError, match="order_filters requires insert_log_probs"):
        run_passes(lowered(GRPO), passes=[step for step in PASSES if step.name != "insert_log_probs"])


def _lose_an_input(graph: Graph) -> Graph:
    return replace(graph, edges=tuple(e for e in graph.edges if "loss_mask" not in e.fields))


def _lose_an_origin(graph: Graph) -> Graph:
    return replace(graph, edges=tuple(replace(e, origin=()) for e in graph.edges))


def _lose_a_declared_edge(graph: Graph) -> Graph:
    gone = "reward.score -> advantage.estimate"
    edges = (replace(e, origin=tuple(id for id in e.origin if id != gone)) for e in graph.edges)
    return replace(graph, edges=tuple(edges))


def _rename_an_op(graph: Graph) -> Graph:
    return replace(graph, ops=(replace(graph.ops[0], id="other"), *graph.ops[1:]))


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        (_lose_an_input, "0 edges bring loss_mask"),
        (_lose_an_origin, "comes from no declared edge"),
        (_lose_a_declared_edge, "disappeared"),
        (_rename_an_op, "other"),
    ],
)
def test_the_verifier_stops_a_pass_that_breaks_the_graph(broken: object, told: str) -> None:
    passes = [*PASSES, Pass(broken)]  # type: ignore[arg-type]
    with pytest.raises(InternalError, match=told):
        run_passes(lowered(GRPO), passes=passes)


def _made_anew(graph: Graph) -> Graph:
    return replace(graph, ops=tuple(replace(op) for op in graph.ops), edges=tuple(replace(e) for e in graph.edges))


@pytest.mark.parametrize("broken", [_lose_an_input, _rename_an_op])
def test_equal_parts_are_handed_on_and_changed_ones_are_verified_where_they_change(broken: object) -> None:
    graph, _ = run_passes(lowered(GRPO))
    after, _ = run_passes(graph, passes=[Pass(_made_anew)])
    assert after.ops is graph.ops
    assert after.edges is graph.edges
    with pytest.raises(InternalError, match=f"after {broken.__name__}"):  # type: ignore[attr-defined]
        run_passes(graph, passes=[Pass(_made_anew), Pass(broken), Pass(_made_anew)])  # type: ignore[arg-type]


def test_sound_graphs_verify() -> None:
    for text in (GRPO, PPO):
        assert verify(lowered(text)) == ()
        assert verify(run_passes(lowered(text))[0]) == ()


def test_passes_change_nothing_in_place_and_may_run_again() -> None:
    graph = lowered(PPO)
    first, second = run_passes(graph)[0], run_passes(graph)[0]
    assert first == second
    assert infer_types(first).ops[0] == first.ops[0]


def test_instruments_watch_every_pass(tmp_path: Path) -> None:
    timing, dump = Timing(), Dump(tmp_path)
    graph, _ = run_passes(lowered(GRPO), instruments=(timing, dump))
    assert list(timing.seconds) == [step.name for step in PASSES]
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files[0] == "00-lowered.graph"
    assert files[-1] == f"{len(PASSES):02d}-canonicalize.graph"
    assert parse_graph((tmp_path / files[-1]).read_text()) == without_spans(graph)
