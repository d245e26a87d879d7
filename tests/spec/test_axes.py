"""The grammar of a sweep's flags: a list of values is what YAML reads between brackets."""

from __future__ import annotations

import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from flowrl.diag.diagnostic import FlowError
from flowrl.spec.axes import read_axes, read_prices, split_values

PLAIN = st.one_of(
    st.integers(-99, 99).map(str),
    st.sampled_from(["auto", "true", "H100-80G", "don't", "1.0e-6", "a b", "x]", "0.5"]),
    st.text(max_size=8).map(json.dumps),
    st.lists(st.integers(0, 9), max_size=3).map(json.dumps),
    st.dictionaries(st.sampled_from("ab"), st.text(",]}[{'\"", max_size=3), max_size=2).map(json.dumps),
    st.text("ab, ]'", max_size=6).map(lambda text: "'" + text.replace("'", "''") + "'"),
)


@given(st.lists(PLAIN, min_size=1, max_size=5), st.sampled_from([",", ", ", " , "]))
def test_values_come_apart_as_they_were_put_together(values: list[str], comma: str) -> None:
    assert [text for _, text in split_values(comma.join(values))] == values


@given(st.lists(PLAIN.filter(lambda value: value not in ("x]", "a b")), min_size=1, max_size=5))
def test_values_are_those_of_a_yaml_list(values: list[str]) -> None:
    text = ",".join(values)
    found = [yaml.safe_load(piece) for _, piece in split_values(text)]
    assert found == yaml.safe_load(f"[{text}]")


@pytest.mark.parametrize("text", ["8,16, 32", " 8 ,16"])
def test_values_know_where_they_stand(text: str) -> None:
    for at, piece in split_values(text):
        assert text[at : at + len(piece)] == piece


def test_axes_have_an_order_of_their_own() -> None:
    """Kinds, sizes, then keys as given; each value once."""
    axes = read_axes(["8,16,8"], ["H100-80G", "H20"], ["step.prompts=64,128", "run.steps=5"])
    assert [(axis.title, [value.text for value in axis.values]) for axis in axes] == [
        ("gpu", ["H100-80G", "H20"]),
        ("gpus", ["8", "16"]),
        ("step.prompts", ["64", "128"]),
        ("run.steps", ["5"]),
    ]


def test_groups_have_axes_of_their_own() -> None:
    axes = read_axes(["old=8,16", "new=8"], ["old=H20"], [])
    assert [axis.title for axis in axes] == ["gpu of old", "gpus of old", "gpus of new"]
    assert axes[1].values[1].span.column == len("old=8,") + 1


@pytest.mark.parametrize(
    ("gpus", "sets", "columns"),
    [
        (["8,x"], [], [3]),
        (["0"], [], [1]),
        (["-8"], [], [1]),
        (["8.5,1e3"], [], [1, 5]),
        (["٨"], [], [1]),
        (["8,"], [], [3]),
        ([""], [], [1]),
        ([], ["a.b=1,,2"], [7]),
    ],
)
def test_faults_of_axes(gpus: list[str], sets: list[str], columns: list[int]) -> None:
    with pytest.raises(FlowError) as error:
        read_axes(gpus, [], sets)
    assert {each.code for each in error.value.diagnostics} == {"FR0740"}
    assert [each.labels[0].span.column for each in error.value.diagnostics] == columns


def test_a_flag_with_one_value_is_as_it_is() -> None:
    """Whatever `--set` takes: what is wrong with it is told where it is planned."""
    axes = read_axes([], [], ["data.train.keep=[a, b]", "no value", "x="])
    assert [[value.text for value in axis.values] for axis in axes] == [["[a, b]"], [""], [""]]


@pytest.mark.parametrize(
    "sets", [["a.b=1", "c=0", "a.b=2"], ["a.b=1,2", "c=0", "a.b=2"], ["c=0", "a.b = 1", "a.b =2,1"]]
)
def test_flags_of_one_key_are_one_axis(sets: list[str]) -> None:
    """Each value of both counts, as with two `--gpus`: none is left out in silence."""
    axes = {axis.name: sorted(value.text.strip() for value in axis.values) for axis in read_axes([], [], sets)}
    assert axes == {"a.b": ["1", "2"], "c": ["0"]}


@pytest.mark.parametrize("text", ["H20", "=3", "H20=x", "H20=-1", "H20=nan", "H20=inf", "H20="])
def test_faults_of_prices(text: str) -> None:
    with pytest.raises(FlowError) as error:
        read_prices(["H100-80G=2.5", text])
    assert [each.code for each in error.value.diagnostics] == ["FR0740"]
    assert error.value.diagnostics[0].labels[0].span.line == 2


def test_prices() -> None:
    found = read_prices([" H20 = 1.2", "H100-80G=0"])
    assert {name: price for name, (price, _) in found.items()} == {"H20": 1.2, "H100-80G": 0.0}
