"""Lag, drift and liveness of random graphs against a toy that runs them."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl.compiler.lower.periods import with_periods
from flowrl.compiler.passes.check_liveness import check_liveness
from flowrl.diag.diagnostic import FlowError
from flowrl.graph.graph import Edge, EdgeKind, Graph, Kind, Op, Role, Schedule, Step
from flowrl.graph.lag import path_lags, versions_in
from flowrl.graph.params import DataParams, GenerateParams, UpdateParams
from flowrl.graph.types import Granularity
from tests.graph.tokens import Measured, Toy

PROMPTS = 12
STEPS = 32
KINDS = {"data": Kind.DATA, "t": Kind.TRAINER, "g": Kind.GENERATOR, "f": Kind.FUNCTION, "e": Kind.ENV}


def _op(id: str, updates: int = 1, epochs: int = 1) -> Op:
    role, rest = (id, "train") if id.startswith("data.") else id.split(".", 1)
    method, _, label = rest.partition("@")
    params = {
        "train": DataParams(source="rows.jsonl", prompts=PROMPTS),
        "generate": GenerateParams(max_response_tokens=8),
        "update": UpdateParams(loss="ppo", updates=updates, epochs=epochs),
    }
    return Op(
        id=id,
        role=role,
        method=method,
        label=label or None,
        granularity=Granularity.MINIBATCH if method == "update" else Granularity.SAMPLE,
        params=params.get(method),
        firings=updates * epochs if method == "update" else 1,
    )


def _edge(kind: EdgeKind, source: str, target: str, **more: int | None) -> Edge:
    arrow = {EdgeKind.DATA: "->", EdgeKind.WEIGHTS: "=>", EdgeKind.INTERACTION: "<->", EdgeKind.STATE: "before"}[kind]
    return Edge(id=f"{source} {arrow} {target}", kind=kind, source=source, target=target, **more)  # type: ignore[arg-type]


@st.composite
def _weights(draw: st.DrawFn, trainer: Op, generator: str) -> Edge:
    every = draw(st.sampled_from(["step", "steps", "updates"]))
    lag = draw(st.integers(0, 3))
    start = draw(st.sampled_from([None, None, 1, 3]))
    if every != "updates":
        steps = draw(st.integers(2, 4)) if every == "steps" else None
        more = {"tokens": 1 + lag, "every_steps": steps, "start_step": start}
        return _edge(EdgeKind.WEIGHTS, trainer.role, generator, **more)
    n = draw(st.sampled_from([n for n in range(1, trainer.firings + 1) if trainer.firings % n == 0]))
    return _edge(
        EdgeKind.WEIGHTS, trainer.role, generator, tokens=trainer.firings // n + lag, every_updates=n, start_step=start
    )


@st.composite
def _graphs(draw: st.DrawFn) -> Graph:
    """One or two trainers and generators, a second call of one, functions between them, an environment that ties them,
    readers of a trainer's weights, edges that rest in some steps; now and then an edge that goes back."""
    updates = [
        _op(f"t{n}.update", draw(st.sampled_from([1, 2, 3, 4])), draw(st.integers(1, 2)))
        for n in range(draw(st.integers(1, 2)))
    ]
    generators = [f"g{n}" for n in range(draw(st.integers(1, 2)))]
    calls = [f"{role}.generate" for role in generators] + draw(st.sampled_from([[], [], ["g0.generate@greedy"]]))
    functions = [f"f{n}.call" for n in range(draw(st.integers(0, 4)))]
    readers = [f"{op.role}.log_probs" for op in updates if draw(st.booleans())]
    middle = draw(st.permutations(calls + functions + readers))
    order = ["data.train", *middle, *(op.id for op in updates)]
    ops = [_op(id) for id in order[: -len(updates)]] + updates
    edges = [edge for place, id in enumerate(order) if place for edge in draw(_feeds(order, id, len(middle)))]
    if draw(st.integers(0, 5)) == 0 and len(middle) > 1:
        first, last = sorted(draw(st.sets(st.integers(0, len(middle) - 1), min_size=2, max_size=2)))
        edges.append(_edge(EdgeKind.DATA, middle[last], middle[first]))
    tied = draw(st.sets(st.sampled_from(calls[: len(generators)]))) if draw(st.booleans()) else set[str]()
    if tied:
        ops.append(_op("e.step"))
        edges += [_edge(EdgeKind.INTERACTION, call, "e.step") for call in sorted(tied)]
        edges += [_edge(EdgeKind.DATA, "e.step", op.id) for op in updates if draw(st.booleans())]
    edges = list({edge.id: edge for edge in edges}.values())
    ops = list(with_periods(ops, edges))
    edges += [draw(_weights(draw(st.sampled_from(updates)), role)) for role in generators]
    edges += [_edge(EdgeKind.STATE, id, f"{id.split('.')[0]}.update") for id in readers]
    edges += [_edge(EdgeKind.STATE, op.id, op.id, tokens=1) for op in updates]
    roles = dict.fromkeys(op.role for op in ops)
    kinds = {role: KINDS.get(role.partition(".")[0].rstrip("0123456789"), Kind.DATA) for role in roles}
    return Graph(
        name="toy",
        models=(),
        roles=tuple(Role(name=role, kind=kind) for role, kind in kinds.items()),
        ops=tuple(ops),
        declared=tuple(e for e in edges if e.kind in (EdgeKind.WEIGHTS, EdgeKind.INTERACTION)),
        edges=tuple(edges),
        step=Step(prompts=PROMPTS),
        schedule=Schedule(partial_rollout=draw(st.booleans())),
        passes=("balance_rates", "insert_weight_sync"),
    )


@st.composite
def _feeds(draw: st.DrawFn, order: list[str], id: str, middle: int) -> list[Edge]:
    """One to three edges from ops that stand before; those into updates may rest in some steps."""
    before = order[: min(order.index(id), middle + 1)]
    sources = draw(st.sets(st.sampled_from(before), min_size=1, max_size=3))
    rests = id.endswith("update")
    return [
        _edge(
            EdgeKind.DATA,
            source,
            id,
            every_steps=draw(st.sampled_from([None, None, 2, 3])) if rests else None,
            start_step=draw(st.sampled_from([None, None, 2])) if rests else None,
        )
        for source in sorted(sources)
    ]


def _refused(graph: Graph) -> list[str]:
    try:
        check_liveness(graph)
    except FlowError as error:
        return [d.code for d in error.diagnostics]
    return []


FOUND = {"stuck": 0, "ran": 0}


@given(_graphs(), st.integers(0, 1 << 30))
@settings(max_examples=500)
def test_lag_drift_and_liveness_are_those_of_a_run(graph: Graph, seed: int) -> None:
    measured = Toy(graph, STEPS, seed).run()
    assert _refused(graph) == (["FR0316"] if measured.stuck else [])
    FOUND["stuck" if measured.stuck else "ran"] += 1
    if not measured.stuck:
        _assert_measured(graph, measured)


def _assert_measured(graph: Graph, measured: Measured) -> None:
    lags = {(lag.update, lag.generate, lag.edge): lag for lag in path_lags(graph)}
    assert {key: lag.versions for key, lag in lags.items()} == dict(measured.lag)
    assert {key: lag.drift_minibatches for key, lag in lags.items()} == dict(measured.drift)


def test_both_kinds_were_met() -> None:
    """Runs after the one above: many graphs of each kind were among the 500."""
    if sum(FOUND.values()) >= 500:
        assert min(FOUND.values()) > 50


@given(st.integers(0, 40), st.integers(1, 9), st.integers(1, 9))
def test_versions_in_a_window(steps: int, every: int, period: int) -> None:
    publishing = {step for step in range(-200, 400) if (step - 1) % every == 0}
    training = [step for step in range(1, 1 + every * period) if (step - 1) % period == 0]
    counts = [sum(step - 1 - back in publishing for back in range(steps)) for step in training]
    assert versions_in(steps, every, period) == max(counts)
