"""The text form and the digest: print and parse are inverse; order, comments and spans mean nothing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from flowrl.diag.span import Span
from flowrl.graph.graph import Edge, EdgeKind, Graph, Input, Kind, Model, Op, Removal, Role, Schedule, Step
from flowrl.graph.params import (
    CorrectionParams,
    DataParams,
    EngineParams,
    EstimateParams,
    ForwardParams,
    GenerateParams,
    KlParams,
    OptimizerParams,
    ScoreParams,
    UpdateParams,
)
from flowrl.graph.text import graph_digest, parse_graph, print_graph, without_spans
from flowrl.graph.types import Field, Granularity, Unit

NAMES = st.text(min_size=1, max_size=6)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False, width=32)
ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | NUMBERS | NAMES,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=2),
    max_leaves=4,
)
ARGS = st.dictionaries(NAMES, ANY, max_size=2)
KL = st.none() | st.builds(KlParams, coef=NUMBERS, form=st.sampled_from(("k1", "k3")))
PARAMS = st.one_of(
    st.none(),
    st.builds(DataParams, source=NAMES, keep=st.lists(NAMES, max_size=2).map(tuple), args=ARGS),
    st.builds(GenerateParams, max_response_tokens=st.integers(0, 9), temperature=NUMBERS, extra=ARGS),
    st.builds(ForwardParams, temperature=NUMBERS),
    st.builds(
        UpdateParams,
        loss=NAMES,
        clip_dual=st.none() | NUMBERS,
        kl=KL,
        corrections=st.lists(st.builds(CorrectionParams, name=NAMES, cap=st.none() | NUMBERS), max_size=2).map(tuple),
    ),
    st.builds(EstimateParams, estimator=NAMES, kl=KL, extra=ARGS),
    st.builds(ScoreParams, flavour=NAMES, function=st.none() | NAMES, args=ARGS),
)
SPANS = st.none() | st.builds(Span, NAMES, *[st.integers(1, 9)] * 4)
OPS = st.builds(
    Op,
    id=NAMES,
    role=NAMES,
    method=NAMES,
    label=st.none() | NAMES,
    granularity=st.sampled_from(Granularity),
    inputs=st.lists(
        st.builds(Input, slot=NAMES, field=NAMES, source=st.none() | NAMES, unit=st.sampled_from(Unit), span=SPANS),
        max_size=2,
    ).map(tuple),
    outputs=st.lists(st.builds(Field, name=NAMES, unit=st.sampled_from(Unit), dtype=NAMES), max_size=2).map(tuple),
    params=PARAMS,
    firings=st.integers(1, 3),
    span=SPANS,
    spans=st.dictionaries(NAMES, st.builds(Span, NAMES, *[st.integers(1, 9)] * 4), max_size=1),
)
EDGES = st.builds(
    Edge,
    id=NAMES,
    kind=st.sampled_from(EdgeKind),
    source=NAMES,
    target=NAMES,
    fields=st.lists(NAMES, max_size=2).map(tuple),
    granularity=st.none() | st.sampled_from(Granularity),
    tokens=st.integers(0, 2),
    span=SPANS,
)
ROLES = st.builds(
    Role,
    name=NAMES,
    kind=st.sampled_from(Kind),
    optimizer=st.none() | st.builds(OptimizerParams, max_grad_norm=st.none() | NUMBERS),
    engine=st.builds(EngineParams, offload=st.none() | st.booleans(), extra=ARGS),
    span=SPANS,
)
GRAPHS = st.builds(
    Graph,
    name=NAMES,
    models=st.lists(st.builds(Model, name=NAMES, source=NAMES, inline=st.none() | ARGS), max_size=2).map(tuple),
    roles=st.lists(ROLES, max_size=2).map(tuple),
    ops=st.lists(OPS, max_size=3).map(tuple),
    declared=st.lists(EDGES, max_size=2).map(tuple),
    edges=st.lists(EDGES, max_size=2).map(tuple),
    step=st.builds(Step, prompts=st.integers(1, 9)),
    schedule=st.builds(Schedule, max_lag=st.integers(0, 2)),
    removed=st.lists(st.builds(Removal, id=NAMES, reason=NAMES, text=NAMES), max_size=2).map(tuple),
    passes=st.lists(NAMES, max_size=2).map(tuple),
)


@given(GRAPHS)
@settings(max_examples=60, deadline=None)
def test_parse_reads_back_what_print_wrote(graph: Graph) -> None:
    text = print_graph(graph)
    assert parse_graph(text) == without_spans(graph)
    assert print_graph(parse_graph(text)) == text


@given(GRAPHS)
@settings(max_examples=30, deadline=None)
def test_digest_ignores_order_and_spans(graph: Graph) -> None:
    turned = replace(graph, ops=graph.ops[::-1], roles=graph.roles[::-1], edges=graph.edges[::-1])
    assert graph_digest(graph) == graph_digest(turned) == graph_digest(without_spans(graph))


@given(GRAPHS, st.integers(2, 9))
@settings(max_examples=30, deadline=None)
def test_digest_sees_the_maths(graph: Graph, more: int) -> None:
    step = replace(graph.step, prompts=graph.step.prompts + more)
    assert graph_digest(replace(graph, step=step)) != graph_digest(graph)
    for index, op in enumerate(graph.ops):
        changed = replace(op, firings=op.firings + more)
        ops = (*graph.ops[:index], changed, *graph.ops[index + 1 :])
        assert graph_digest(replace(graph, ops=ops)) != graph_digest(graph)


def test_comments_and_blank_lines_are_skipped() -> None:
    graph = Graph(name="g", models=(), roles=(), ops=(), declared=(), step=Step(prompts=1))
    assert parse_graph("# by hand\n\n" + print_graph(graph) + "  # the end\n") == graph


@pytest.mark.parametrize(("line", "told"), [("nonsense", "unknown word"), ("step prompts=", "line 2")])
def test_a_bad_line_is_named(line: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        parse_graph(f'graph "g"\n{line}\n')


def test_printed_form() -> None:
    op = Op(
        id="critic.values",
        role="critic",
        method="values",
        granularity=Granularity.SAMPLE,
        inputs=(Input(slot="tokens", field="tokens", source="actor_infer.generate", dtype="i32"),),
        outputs=(Field(name="values", unit=Unit.TOKEN, dtype="f32"),),
        params=ForwardParams(),
    )
    graph = Graph(name="g", models=(), roles=(), ops=(op,), declared=(), step=Step(prompts=4, updates=2))
    assert print_graph(graph) == (
        'graph "g"\n'
        "passes\n"
        "step prompts=4 updates=2\n"
        "schedule\n"
        'op "critic.values" role="critic" method="values" granularity="sample"\n'
        '  in "tokens" field="tokens" source="actor_infer.generate" dtype="i32"\n'
        '  out "values" unit="token" dtype="f32"\n'
        '  params type="forward" micro_batch_tokens=16384 temperature=1.0\n'
    )
