"""Helps as edits: what they change, and that nothing else changes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrl.diag.diagnostic import Diagnostic, Help, Label, Respelt, Severity
from flowrl.diag.edits import BOM, Edit, apply, certain_edits, edit_of, with_lines
from flowrl.diag.span import Span


def help_at(line: int, column: int, end: int, replacement: str | None, certain: bool = True, file: str = "f") -> Help:
    return Help(text="t", span=Span(file, line, column, line, end), replacement=replacement, certain=certain)


def told(*helps: Help) -> list[Diagnostic]:
    label = Label(Span("f", 1, 1, 1, 2), "")
    return [Diagnostic(code="FR0103", severity=Severity.ERROR, headline="h", labels=(label,), helps=helps)]


def test_edit_replaces_the_whole_word_of_its_span() -> None:
    edit = edit_of(help_at(1, 5, 10, "a: {prompt: 1}"), "a: {promt: 1}")
    assert edit == Edit(1, 4, 9, "prompt")


def test_two_edits_of_one_line_are_both_made() -> None:
    source = "a: {promt: 1, kep: [b]}  # promt stays\r\n"
    helps = [
        help_at(1, 5, 10, "a: {prompt: 1, kep: [b]}  # promt stays"),
        help_at(1, 15, 18, "a: {promt: 1, keep: [b]}  # promt stays"),
    ]
    assert apply(certain_edits(told(*helps), "f", source), source) == "a: {prompt: 1, keep: [b]}  # promt stays\r\n"


def test_only_certain_edits_of_the_file_count() -> None:
    helps = [
        help_at(1, 1, 2, "b: 1", certain=False),
        help_at(1, 1, 2, "c: 1", file="other"),
        help_at(1, 1, 2, None),
        help_at(9, 1, 2, "d: 1"),
        help_at(1, 1, 2, "two\nlines"),
        help_at(1, 1, 2, "a: 1"),
    ]
    assert certain_edits(told(*helps), "f", "a: 1\n") == []


def test_edits_that_touch_wait_for_the_next_round() -> None:
    helps = [help_at(1, 1, 4, "one: x"), help_at(1, 1, 4, "two: x")]
    assert len(certain_edits(told(*helps), "f", "abc: x")) == 1


def test_byte_order_mark_stays() -> None:
    source = f"{BOM}nam: x\n"
    assert apply(certain_edits(told(help_at(1, 1, 4, "name: x")), "f", source), source) == f"{BOM}name: x\n"


@given(st.lists(st.text(st.characters(exclude_characters="\r\n", codec="utf-8")), min_size=1), st.data())
def test_edit_makes_the_replacement_and_leaves_other_lines(lines: list[str], data: st.DataObject) -> None:
    number = data.draw(st.integers(1, len(lines)))
    new = data.draw(st.text(st.characters(exclude_characters="\r\n\ufeff", codec="utf-8")))
    end = data.draw(st.sampled_from(["\n", "\r\n"]))
    source = end.join(["x", *lines])
    column = data.draw(st.integers(1, len(lines[number - 1]) + 1))
    edit = edit_of(help_at(number + 1, column, column, new), source)
    found = source if edit is None else apply([edit], source)
    wanted = ["x", *lines]
    wanted[number] = new
    if lines[number - 1].removesuffix("\r") == lines[number - 1]:
        assert found == end.join(wanted)


def respelt(old: str, new: str, column: int, end: int) -> list[Diagnostic]:
    return told(Respelt(text="t", span=Span("f", 1, column, 1, end), old=old, new=new, certain=True))


def test_a_respelling_becomes_the_line_of_its_span_only() -> None:
    source = "{backend: fdsp, note: fdsp}\nfdsp\n"
    (made,) = with_lines(respelt("fdsp", "fsdp", 11, 15), {"f": source})
    assert made.helps == (help_at(1, 11, 15, "{backend: fsdp, note: fdsp}"),)


@pytest.mark.parametrize(
    "text",
    [{"f": "{a: {{ b }}, c: d}"}, {"f": "{a: fdsp, b: fdsp}"}, {"f": ""}, {}],
    ids=["not there", "twice", "no such place", "no source"],
)
def test_a_respelling_that_cannot_be_shown_stays_words(text: dict[str, str]) -> None:
    (made,) = with_lines(respelt("fdsp", "fsdp", 1, 19), text)
    assert made.helps == (Help(text="t"),)
