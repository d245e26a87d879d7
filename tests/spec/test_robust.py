"""Whatever is done to a flow, loading it gives a FlowSpec or diagnostics that can be drawn; never another exception."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl.diag.diagnostic import Diagnostic, FlowError
from flowrl.diag.render import render_json, render_text
from flowrl.spec import loads, to_yaml
from tests.spec.flows import GRPO, STAGES

ROOT = Path(__file__).resolve().parents[2]
FLOWS = sorted((ROOT / "examples" / "flows").glob("*.yaml"))
TEXTS = [GRPO, STAGES, *(path.read_text(encoding="utf-8") for path in FLOWS)]
ODD = [
    "", "null", "[]", "{}", "[[]]", "{a: b}", "3", "-1", "1e400", "yes", '"{{ x }}"', "*x", "&x 1", "!t 1", "a -> b",
    "data", "stages.a.b", "{kind: x}", "generate@", "@", "a.b", "x: y", "- x", "\t", "'", '"', "#", "é", "{{", "|",
]  # fmt: skip
FLAGS = [
    "step", "step.prompts", "roles.actor_train", "roles.actor_train.update.loss", "stages.0.name", "use", "edges",
    "vars.lr", "run.steps", "models.policy.source", "stages.second", "name", "a.b.c", "assume.a.b.c", "cluster",
]  # fmt: skip


def faults(text: str, sets: tuple[str, ...]) -> tuple[Diagnostic, ...] | None:
    """What is wrong with the flow; None if nothing is, and then it comes back from YAML as it is."""
    try:
        spec = loads(text, "flow.yaml", sets=sets)
    except FlowError as error:
        return error.diagnostics
    assert loads(to_yaml(spec)).document == spec.document
    return None


def survives(text: str, sets: tuple[str, ...] = ()) -> None:
    found = faults(text, sets)
    if found is not None:
        assert found
        assert render_text(found, lambda _: text)
        assert render_json(found)


@st.composite
def damaged(draw: st.DrawFn) -> str:
    """A flow with a word, a value or a line replaced, removed or doubled."""
    text = draw(st.sampled_from(TEXTS))
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(text)))
        stop = draw(
            st.sampled_from([start, start + 1, text.find("\n", start) + 1 or start, text.find(",", start) + 1 or start])
        )
        text = text[:start] + draw(st.sampled_from([*ODD, text[start:stop] * 2])) + text[max(stop, start) :]
    return text


@st.composite
def replaced(draw: st.DrawFn) -> str:
    """A flow in which the value of one key is something else."""
    text = draw(st.sampled_from(TEXTS))
    starts = [index + 2 for index in range(len(text)) if text.startswith(": ", index)]
    start = draw(st.sampled_from(starts))
    ends = [end for end in (text.find(mark, start) for mark in (",", "}", "\n")) if end >= 0]
    return text[:start] + draw(st.sampled_from(ODD)) + text[min(ends) :]


@settings(max_examples=60)
@given(damaged())
def test_damaged_texts(text: str) -> None:
    survives(text)


@settings(max_examples=60)
@given(replaced())
def test_other_values(text: str) -> None:
    survives(text)


@settings(max_examples=40)
@given(st.sampled_from([GRPO, STAGES]), st.lists(st.tuples(st.sampled_from(FLAGS), st.sampled_from(ODD)), max_size=3))
def test_flags(text: str, flags: list[tuple[str, str]]) -> None:
    survives(text, tuple(f"{path}={value}" for path, value in flags))


def calls_of_a_load(unknown: int) -> int:
    """Calls of Python functions while a flow is refused for a cluster with so many keys that there are not, below one
    that there is."""
    keys = "".join(f"  d{n}: {{source: x.jsonl}}\n" for n in range(unknown))
    text = f"{GRPO}cluster:\n  gpus_per_node: 8\n{keys}"
    made = 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal made
        made += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        with pytest.raises(FlowError) as caught:
            loads(text)
    finally:
        sys.setprofile(before)
    assert sum(each.code == "FR0103" for each in caught.value.diagnostics) == unknown
    return made


def test_the_work_of_telling_many_faults_grows_with_their_number_not_with_its_square() -> None:
    few, many, most = (calls_of_a_load(count) for count in (100, 300, 700))
    assert most - many <= 2.1 * (many - few), "twice as many more faults, twice the work"
