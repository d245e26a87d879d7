"""The YAML reader: types of the core schema, places, limits, and no exception but ours on any text."""

from __future__ import annotations

import time

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from flowrl.diag.diagnostic import Diagnostic, FlowError
from flowrl.spec.tree import MappingNode, Node, ScalarNode, SequenceNode, descend, plain_value
from flowrl.spec.yaml_tree import LARGEST_BYTES, LARGEST_DEPTH, read_yaml, typed


def value(text: str) -> object:
    node = read_yaml(text, "a.yaml")
    assert node is not None
    return plain_value(node)


def diagnostics_of(text: str) -> tuple[Diagnostic, ...]:
    try:
        read_yaml(text, "a.yaml")
    except FlowError as error:
        return error.diagnostics
    return ()


def codes(text: str) -> list[str]:
    return [diagnostic.code for diagnostic in diagnostics_of(text)]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        # The table of YAML 1.2.2, section 10.3.2, and what 1.1 reads otherwise.
        ("null", None), ("~", None), ("", None), ("Null", None),
        ("true", True), ("False", False), ("on", "on"), ("off", "off"), ("yes", "yes"), ("no", "no"), ("y", "y"),
        ("0", 0), ("-19", -19), ("+12", 12), ("0o7", 7), ("0x3A", 58), ("010", 10), ("1_000", "1_000"), ("0b1", "0b1"),
        ("0.", 0.0), ("-0.0", 0.0), (".5", 0.5), ("+12e03", 12000.0), ("-2E+05", -200000.0), ("1e-6", 1e-6),
        (".inf", float("inf")), ("-.Inf", -float("inf")), ("inf", "inf"), ("nan", "nan"),
        ("1:30", "1:30"), ("2001-01-01", "2001-01-01"), ("1.2.3", "1.2.3"), ("e5", "e5"), ("+", "+"), (".", "."),
    ],
)  # fmt: skip
def test_core_schema(text: str, wanted: object) -> None:
    found = typed(text)
    assert found == wanted
    assert type(found) is type(wanted)


def test_not_a_number_is_a_float() -> None:
    assert str(typed(".NaN")) == "nan"


def test_quoted_scalars_are_text() -> None:
    assert value('["1", \'1e-6\', "true", !!str 5]') == ["1", "1e-6", "true", "5"]


def test_a_number_too_long_for_python_is_text() -> None:
    assert typed("9" * 5000) == "9" * 5000


def test_places_of_keys_and_values() -> None:
    text = "a: 1\nbé: {c: [x, 'y z'],\n    d: text\n}\nlist:\n  - k: v\n  - last\n"
    root = read_yaml(text, "a.yaml")
    assert isinstance(root, MappingNode)

    def place(*path: str | int) -> tuple[int, int, int, int]:
        node = descend(root, path)
        assert node is not None
        span = node.span
        return (span.line, span.column, span.end_line, span.end_column)

    assert place("a") == (1, 4, 1, 5)
    assert place("bé", "c", 1) == (2, 13, 2, 18)
    assert place("list", 0) == (6, 5, 6, 9)
    assert place("list") == (6, 3, 7, 9)
    assert root.entries["bé"].key_span.end_column == 3


def test_alias_has_the_place_of_its_use_and_knows_its_definition() -> None:
    root = read_yaml("a: &x {k: 1}\nb: *x\n", "a.yaml")
    assert isinstance(root, MappingNode)
    used = root.get("b")
    assert isinstance(used, MappingNode)
    assert used.span.line == 2
    assert used.anchor is not None
    assert used.anchor.line == 1
    assert plain_value(used) == {"k": 1}


def test_merge_keys() -> None:
    text = "a: &a {x: 1, y: 1}\nb: &b {x: 2, z: 2}\nc: {<<: [*a, *b], y: 3}\nd: {y: 4, <<: *a}\n"
    assert value(text)["c"] == {"x": 1, "y": 3, "z": 2}  # type: ignore[index]
    assert value(text)["d"] == {"x": 1, "y": 4}  # type: ignore[index]


def test_half_a_character_is_refused() -> None:
    assert codes('a: "\\ud800"') == ["FR0017"]
    assert codes("a: \ud800") == ["FR0017"]


def test_several_faults_are_told_at_once() -> None:
    assert codes("a: !x 1\nb: *none\na: 2\n") == ["FR0014", "FR0012", "FR0011"]


def test_depth_at_and_over_the_limit() -> None:
    assert value("[" * LARGEST_DEPTH + "]" * LARGEST_DEPTH) is not None
    assert codes("[" * (LARGEST_DEPTH + 1) + "]" * (LARGEST_DEPTH + 1)) == ["FR0005"]
    nested = "".join(f"a{i}: &a{i} [[[[[*a{i - 1}]]]]]\n" for i in range(1, 20))
    assert codes(f"a0: &a0 [x]\n{nested}") == ["FR0005"]


def test_hostile_texts_end_soon() -> None:
    start = time.perf_counter()
    assert codes("[" * 100_000) == ["FR0005"]
    assert codes("a: " * 100_000) == ["FR0008"]
    assert codes("{{ a " * 10_000) != []
    bomb = "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 30))
    assert codes(f"a0: &a0 x\n{bomb}") == ["FR0006"]
    assert codes("- x\n" * 60_000) == ["FR0006"]
    assert codes("x" * (LARGEST_BYTES + 1)) == ["FR0004"]
    assert time.perf_counter() - start < 20


@given(st.text(st.sampled_from("a1 :-[]{},#&*!|>'\"%@`\n\t.<?~"), max_size=40))
@example("? ")
@example("a: *")
@example("{{ a }}")
@example("\ta: b")
@example("- - a\n - b")
def test_any_text_is_read_or_refused(text: str) -> None:
    for diagnostic in diagnostics_of(text):
        assert diagnostic.code.startswith("FR00")
        span = diagnostic.labels[0].span
        assert 1 <= span.line <= text.count("\n") + 1
        assert (span.line, span.column) <= (span.end_line, span.end_column)


words = st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), max_size=8)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", min_size=1), inner, max_size=3),
    max_leaves=12,
)


@given(plain)
def test_reads_what_json_means(wanted: object) -> None:
    """JSON is YAML 1.2, so Python's json is a second opinion on values."""
    import json

    text = json.dumps(wanted).replace("Infinity", ".inf")
    assert value(text) == wanted


def leaves(node: Node) -> list[ScalarNode]:
    if isinstance(node, MappingNode):
        return [leaf for entry in node.entries.values() for leaf in leaves(entry.node)]
    if isinstance(node, SequenceNode):
        return [leaf for item in node.items for leaf in leaves(item)]
    return [node]


@given(plain)
def test_places_hold_what_is_read(wanted: object) -> None:
    """The text at the place of a scalar reads as that scalar, by PyYAML too where the schemas agree."""
    text = yaml.safe_dump(wanted, default_flow_style=None, allow_unicode=True, width=1000)
    lines = text.split("\n")
    root = read_yaml(text, "a.yaml")
    assert root is not None
    for leaf in leaves(root):
        span = leaf.span
        if span.line == span.end_line and leaf.text:
            shown = lines[span.line - 1][span.column - 1 : span.end_column - 1]
            again = read_yaml(shown, "b.yaml")
            assert isinstance(again, ScalarNode)
            assert again.value == leaf.value


def test_a_fault_behind_a_long_scalar_is_told_by_the_quick_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """One scalar of 200,000 characters is one event: Python's reader, which takes seconds for it, is not asked."""
    asked: list[object] = []
    monkeypatch.setattr(yaml.SafeLoader, "__init__", lambda *arguments: asked.append(arguments))
    with pytest.raises(FlowError) as error:
        read_yaml(f"name: {'long ' * 40_000}\nstep: [1, 2\nrun: {{}}\n", "a.yaml")
    (found,) = error.value.diagnostics
    assert (found.code, found.labels[0].span.line if found.labels[0].span else None) == ("FR0008", 3)
    assert asked == []


def test_a_fault_before_many_blank_lines_is_told_by_the_quick_reader() -> None:
    """What the quick reader refuses at the second line is not looked for in a million lines behind it."""
    (found,) = diagnostics_of("run: {steps: 1}\nx: {a: 'b' c}\n" + "\n" * 1_000_000)
    assert (found.code, found.labels[0].span.line if found.labels[0].span else None) == ("FR0008", 2)
