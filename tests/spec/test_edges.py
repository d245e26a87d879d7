"""Edges: what their text means, and how writing one again, splitting and removing work on pairs."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrl.diag.diagnostic import FlowError
from flowrl.spec import loads
from flowrl.spec.schema import EdgeDocument
from tests.spec.flows import GRPO, changed, codes, edges_of

HEAD, _, REST = GRPO.partition("edges:\n")
TAIL = REST[REST.index("step:") :]


def document(*edges: str) -> tuple[EdgeDocument, ...]:
    text = HEAD + "edges:\n" + "".join(f"  - {edge}\n" for edge in edges) + TAIL
    return loads(text).document.edges


@pytest.mark.parametrize(
    ("text", "sources", "arrow", "targets"),
    [
        ("data.train -> actor_infer.generate", ("data.train",), "->", ("actor_infer.generate",)),
        ("a.b,c.d->e.f", ("a.b", "c.d"), "->", ("e.f",)),
        ("a => b, c", ("a",), "=>", ("b", "c")),
        ("a.generate, b.generate <-> env.step", ("a.generate", "b.generate"), "<->", ("env.step",)),
        ("my-role.op@x-1 -> data-2.y", ("my-role.op@x-1",), "->", ("data-2.y",)),
        ('"a.b -> c.d"', ("a.b",), "->", ("c.d",)),
    ],
)
def test_text(text: str, sources: tuple[str, ...], arrow: str, targets: tuple[str, ...]) -> None:
    (edge,) = document(text)
    assert (edge.sources, edge.arrow, edge.targets) == (sources, arrow, targets)


def test_long_form() -> None:
    (edge,) = document("{edge: a => b, every_steps: 2, max_lag: 1, transport: nccl, timeout_seconds: 5}")
    assert (edge.every_steps, edge.max_lag, edge.transport, edge.timeout_seconds) == (2, 1, "nccl", 5.0)


def test_writing_an_edge_again_adds_attributes() -> None:
    (edge,) = document("{edge: a => b, every_steps: 2}", "{edge: a => b, max_lag: 1}", "a => b")
    assert (edge.every_steps, edge.max_lag) == (2, 1)


def test_attributes_of_one_pair_split_the_edge() -> None:
    edges = document("a.x -> b.y, c.z", "{edge: a.x -> c.z, start_step: 20}")
    assert [(edge.text, edge.start_step) for edge in edges] == [("a.x -> b.y", None), ("a.x -> c.z", 20)]


def test_a_removed_pair_splits_the_edge_too() -> None:
    edges = document("a.x, b.x -> c.y, d.y", "{edge: b.x -> c.y, remove: true}")
    assert [edge.text for edge in edges] == ["a.x -> c.y", "a.x -> d.y", "b.x -> d.y"]


def test_an_edge_may_be_removed_and_written_anew() -> None:
    edges = document(
        "{edge: a => b, max_lag: 1}", "c => d", "{edge: a => b, remove: true}", "{edge: a => b, every_steps: 2}"
    )
    assert [(edge.text, edge.max_lag, edge.every_steps) for edge in edges] == [
        ("c => d", None, None),
        ("a => b", None, 2),
    ]


def test_an_arrow_is_part_of_the_identity() -> None:
    assert len(document("a.x -> b.y", "a => b")) == 2


def test_places_of_edges_and_ends() -> None:
    spec = loads(changed(GRPO, ("reward.score ->", "reward.score, data.train ->")))
    span = spec.span("edges", 2, "sources", 1)
    assert span is not None
    assert (span.line, span.column, span.end_column) == (15, 19, 29)
    whole = spec.span("edges", 2)
    assert whole is not None
    assert (whole.line, whole.column) == (15, 5)


ends = st.sampled_from(["a.x", "b.x", "c.x"])
entries = st.lists(  # what an entry has: sources, targets, attributes, whether it removes
    st.tuples(
        st.lists(ends, min_size=1, max_size=2, unique=True),
        st.lists(st.sampled_from(["p.y", "q.y"]), min_size=1, max_size=2, unique=True),
        st.dictionaries(st.sampled_from(["every_steps", "start_step"]), st.integers(1, 3)),
        st.booleans(),
    ),
    min_size=1,
    max_size=6,
)


@given(entries)
def test_edges_mean_the_set_of_their_pairs(written: list[tuple[list[str], list[str], dict[str, int], bool]]) -> None:
    """Against the rule spelled out pair by pair: later attributes win, a removal deletes what stands above."""
    lines: list[str] = []
    pairs: dict[tuple[str, str], dict[str, int]] = {}
    for sources, targets, attributes, removes in written:
        own = list(itertools.product(sources, targets))
        removes = removes and all(pair in pairs for pair in own)
        extra = {"remove": "true"} if removes else attributes
        text = "".join(f", {key}: {value}" for key, value in extra.items())
        lines.append(f'{{edge: "{", ".join(sources)} -> {", ".join(targets)}"{text}}}')
        for pair in own:
            if removes:
                del pairs[pair]
            else:
                pairs[pair] = {**pairs.get(pair, {}), **attributes}
    found: dict[tuple[str, str], dict[str, int]] = {}
    for edge in document(*lines):
        given_keys = edge.model_dump(include={"every_steps", "start_step"}, exclude_none=True)
        for pair in itertools.product(edge.sources, edge.targets):
            assert pair not in found
            found[pair] = given_keys
    assert found == pairs


@pytest.mark.parametrize(
    "edge",
    [
        "a.x", "a.x b.y", "-> b.y", "a.x ->", "a.x -> ", "a.x, -> b.y", "a -> b.y", "a.x -> b", "a.x => b.y",
        "a.x.y -> b.y", "a.x@ -> b.y", "1a.x -> b.y", "a.x -> b.y -> c.z", "a.x --> b.y", "a.x → b.y", "a.x <- b.y",
        "a.x, a.x -> b.y", "a .x -> b.y", "'a.x -> {}'", "{edge: }", "{edge: 3}", "{egde: a => b}", "3", "[a, b]",
        "null",
    ],
)  # fmt: skip
def test_malformed(edge: str) -> None:
    assert set(codes(changed(GRPO, ("actor_train => actor_infer", edge)))) == {"FR0110"}


@pytest.mark.parametrize(
    "edges",
    ["[a.x, b.x -> c.y]", "[a.x -> b.y, c.y]", "[data.train, actor_train => actor_infer]"],
)
def test_flow_list_without_quotes(edges: str) -> None:
    assert "FR0111" in codes(f"{HEAD}edges: {edges}\n{TAIL}")


def test_flow_list_with_quotes() -> None:
    spec = loads(f'{HEAD}edges: ["a.x, b.x -> c.y", a => b]\n{TAIL}')
    assert edges_of(spec) == ["a.x, b.x -> c.y", "a => b"]


@pytest.mark.parametrize(("first", "second"), [("every_steps", "every_updates"), ("every_updates", "every_steps")])
def test_one_way_of_publishing_also_where_an_edge_is_written_again(first: str, second: str) -> None:
    text = changed(
        GRPO,
        (
            "  - actor_train => actor_infer\n",
            f"  - {{edge: actor_train => actor_infer, {first}: 1}}\n"
            f"  - {{edge: actor_train => actor_infer, {second}: 1}}\n",
        ),
    )
    assert codes(text) == ["FR0112"]
    apart = text.replace(f"{second}: 1", f"{first}: 2")
    assert codes(apart) == []


def test_columns_do_not_travel_with_weights() -> None:
    text = changed(
        GRPO, ("  - actor_train => actor_infer\n", "  - {edge: actor_train => actor_infer, fields: [tokens]}\n")
    )
    assert codes(text) == ["FR0112"]


def test_a_fault_in_what_a_template_makes_is_at_the_template() -> None:
    text = GRPO.replace("edges:\n", "edges:\n  - '{{ self }} -> {{ self }}'\n", 1)
    with pytest.raises(FlowError) as refused:
        loads(text)
    written = text.splitlines()
    spans = [label.span for each in refused.value.diagnostics for label in each.labels]
    assert spans
    assert all(span.end_column <= len(written[span.end_line - 1]) + 1 for span in spans)
