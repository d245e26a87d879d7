"""An undefined variable is told at the scalar that names it, however the scalar came into the flow."""

from __future__ import annotations

import pytest

from flowrl.diag.diagnostic import FlowError, Label
from flowrl.spec import loads

HEAD = """\
flowrl: 1
name: demo
models: {policy: {source: some/model}}
data: {train: {source: rows.jsonl, response: answer}}
"""


def labels(text: str, sets: tuple[str, ...] = ()) -> list[Label]:
    with pytest.raises(FlowError) as caught:
        loads(HEAD + text, file="flow.yaml", sets=sets)
    assert {diagnostic.code for diagnostic in caught.value.diagnostics} == {"FR0115"}
    return [diagnostic.labels[0] for diagnostic in caught.value.diagnostics]


def places(text: str, sets: tuple[str, ...] = ()) -> set[str]:
    return {str(label.span) for label in labels(text, sets)}


def at(text: str, needle: str, line: int | None = None) -> str:
    """The place of the last `needle` in the text, as spans say it."""
    before = (HEAD + text)[: (HEAD + text).rindex(needle)]
    return f"flow.yaml:{line or before.count(chr(10)) + 1}:{len(before) - before.rfind(chr(10))}"


def test_in_a_plain_value() -> None:
    text = 'use: sft\nstep: {prompts: "{{ size }}"}\n'
    assert places(text) == {at(text, "size")}


def test_beside_a_preset_that_has_variables() -> None:
    """dapo's own variables are defined; one that the flow refers to is not."""
    text = 'use: dapo\nroles: {reward: {function: "r.py:f"}}\nvars: {max_response_tokens: "{{ limit }}"}\n'
    assert places(text) == {at(text, "limit")}


def test_behind_an_alias() -> None:
    text = 'use: sft\nstep: {prompts: &n "{{ size }}", epochs: *n}\n'
    assert places(text) == {at(text, "&n"), at(text, "*n")}


def test_in_a_merged_mapping() -> None:
    text = 'use: sft\nroles: {actor_train: {optimizer: {<<: {lr: "{{ rate }}"}, name: sgd}}}\n'
    assert places(text) == {at(text, "rate")}


def test_in_a_stage() -> None:
    text = 'stages:\n  - {name: one, use: sft, vars: {size: 4}, step: {prompts: "{{ size }}"}}\n'
    text += '  - {name: two, use: sft, step: {prompts: "{{ size }}"}}\n'
    assert places(text) == {at(text, "size")}


def test_in_a_flag() -> None:
    assert places("use: sft\n", ('step.prompts="{{ size }}"',)) == {"--set:1:18"}
