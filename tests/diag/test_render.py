"""Frames: the samples of the style guide byte for byte, and what must hold of any frame."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrl.diag.diagnostic import Diagnostic, Help, Label, Severity, diagnose
from flowrl.diag.render import exit_code, render_json, render_text, sort_diagnostics
from flowrl.diag.span import Span


def make(line: int = 1, column: int = 1, file: str = "flow.yaml", text: str = "here", **more: object) -> Diagnostic:
    span = Span(file, line, column, line, column + 3)
    fields = {"code": "FR0103", "severity": Severity.ERROR, "headline": "unknown key", "labels": (Label(span, text),)}
    return Diagnostic(**(fields | more))  # type: ignore[arg-type]


def test_sample_with_two_labels() -> None:
    """STYLE section 5a."""
    lines = {24: "  - id: score", 27: "    advantage: score.text"}
    source = "\n".join(lines.get(number, "") for number in range(1, 28))
    place = Span("grpo.yaml", 27, 16, 27, 26)
    diagnostic = make(
        headline="port type mismatch",
        code="FR0103",
        labels=(
            Label(place, "expected Rewards, found Text"),
            Label(Span("grpo.yaml", 24, 9, 24, 14), "its ports: reward (Rewards), text (Text)"),
        ),
        why="group-normalised advantage needs one number per trajectory",
        helps=(Help(text="use the port that carries numbers", span=place, replacement="    advantage: score.reward"),),
    )
    assert render_text([diagnostic], {"grpo.yaml": source}.get) == (
        "error[FR0103]: port type mismatch\n"
        "   ┌─ grpo.yaml:27:16\n"
        "24 │   - id: score\n"
        "   │         ----- its ports: reward (Rewards), text (Text)\n"
        "   ⋮\n"
        "27 │     advantage: score.text\n"
        "   │                ^^^^^^^^^^ expected Rewards, found Text\n"
        "   = why:  group-normalised advantage needs one number per trajectory\n"
        "   = help: use the port that carries numbers\n"
        "     27 │     advantage: score.reward\n"
        "   = see:  flowrl explain FR0103\n"
    )


def test_ledger_in_notes_and_several_helps() -> None:
    """STYLE section 5d, the third sample: notes are printed as written, their further lines indented."""
    ledger = "gpu[0..7]: limit 139.0 GiB, need 151.3 GiB\n  KV cache         97.3   kv_fraction 0.70"
    helps = (Help(text="one of these fits\n1  kv_fraction: 0.60\n2  placement: split"),)
    text = render_text([make(31, 16, notes=(ledger,), helps=helps)], lambda _: None)
    assert text.splitlines()[3:] == [
        "   = gpu[0..7]: limit 139.0 GiB, need 151.3 GiB",
        "       KV cache         97.3   kv_fraction 0.70",
        "   = help: one of these fits",
        "           1  kv_fraction: 0.60",
        "           2  placement: split",
        "   = see:  flowrl explain FR0103",
    ]


def test_warning_says_how_to_mute_it() -> None:
    assert "   = mute: allow: [FR0103]\n" in render_text([make(10, severity=Severity.WARNING)], lambda _: None)


def test_two_files_have_a_header_each() -> None:
    labels = (Label(Span("preset:grpo", 2, 1, 2, 3), "too small"), Label(Span("a.yaml", 1, 6, 1, 10), "this preset"))
    text = render_text([make(labels=labels)], {"preset:grpo": "x: 1\nlr: 0", "a.yaml": "use: grpo"}.get)
    assert text.splitlines()[1:7] == [
        "  ┌─ preset:grpo:2:1",
        "2 │ lr: 0",
        "  │ ^^ too small",
        "  ├─ a.yaml:1:6",
        "1 │ use: grpo",
        "  │      ---- this preset",
    ]


def test_file_that_cannot_be_read_is_shown_without_source() -> None:
    text = render_text([make(3, 5)], lambda _: None)
    assert text.splitlines()[1:3] == ["  ┌─ flow.yaml:3:5", "  │ here"]


def test_place_beyond_the_end_of_the_file() -> None:
    text = render_text([make(9, 5)], {"flow.yaml": "a: 1\n"}.get)
    assert text.splitlines()[2:4] == ["9 │", "  │     ^^^ here"]


def test_span_over_several_lines_marks_its_first() -> None:
    label = Label(Span("flow.yaml", 1, 4, 3, 2), "all of it")
    text = render_text([make(labels=(label,))], {"flow.yaml": "a: {b: 1,\n  c: 2\n}"}.get)
    assert text.splitlines()[2:4] == ["1 │ a: {b: 1,", "  │    ^^^^^^ all of it"]


def test_empty_span_has_one_mark() -> None:
    label = Label(Span("flow.yaml", 1, 4, 1, 4), "nothing")
    assert "  │    ^ nothing\n" in render_text([make(labels=(label,))], {"flow.yaml": "a:"}.get)


def test_marks_stand_under_wide_characters_and_tabs() -> None:
    source = "名: \tabc"
    label = Label(Span("flow.yaml", 1, 5, 1, 8), "here")
    lines = render_text([make(labels=(label,))], {"flow.yaml": source}.get).splitlines()
    assert lines[2:4] == ["1 │ 名:     abc", "  │         ^^^ here"]


def test_control_characters_do_not_reach_the_terminal() -> None:
    text = render_text([make(text="a\x1b[31mb", why="c\x9bd")], {"flow.yaml": "x\x1b[2Jy\u202ez"}.get)
    assert not any(character in text for character in "\x1b\x9b\u202e")


def test_very_long_line_is_cut_around_the_label() -> None:
    source = "a" * 5000 + "xyz" + "b" * 5000
    lines = render_text([make(1, 5001)], {"flow.yaml": source}.get, width=80).splitlines()
    assert len(lines[2]) < 200
    at = lines[3].index("^^^")
    assert lines[2][at : at + 3] == "xyz"


def test_ascii_and_colour() -> None:
    diagnostic = make(2, 4, why="because", helps=(Help(text="do"),))
    plain = render_text([diagnostic], {"flow.yaml": "a: 1\nb: 2"}.get, ascii=True)
    assert plain.isascii()
    coloured = render_text([diagnostic], {"flow.yaml": "a: 1\nb: 2"}.get, color=True, ascii=True)
    stripped = coloured
    for code in ("1;31", "1;33", "1;36", "34", "31", "0"):
        stripped = stripped.replace(f"\x1b[{code}m", "")
    assert stripped == plain


def test_order_cap_and_repeats() -> None:
    many = [make(line, text=f"number {line}") for line in range(30, 0, -1)]
    text = render_text([*many, many[0]], lambda _: None)
    assert text.count("error[") == 20
    assert text.endswith("and 10 more\n")
    numbers = [int(line.rpartition(" ")[2]) for line in text.splitlines() if "number" in line]
    assert numbers == list(range(1, 21))


def test_without_a_place_the_label_becomes_the_first_note() -> None:
    text = render_text([diagnose("FR0003", file="a.yaml", problem="it starts like UTF-16")], lambda _: None)
    assert text.splitlines()[1] == " = `a.yaml`: it starts like UTF-16".replace(" =", "  =", 1)


@pytest.mark.parametrize(
    ("codes", "code"),
    [([], 0), (["FR0103"], 1), (["FR0103", "FR9901"], 70)],
)
def test_exit_codes(codes: list[str], code: int) -> None:
    assert exit_code([make(code=name) for name in codes]) == code


def test_warnings_alone_exit_with_0() -> None:
    assert exit_code([make(severity=Severity.WARNING)]) == 0


def test_json_holds_all_of_them_in_order() -> None:
    many = [make(line) for line in range(25, 0, -1)]
    found = json.loads(render_json(many))
    assert [entry["labels"][0]["span"]["line"] for entry in found] == list(range(1, 26))
    assert found[0]["code"] == "FR0103"


spans = st.builds(
    lambda line, column, lines, columns: Span("f", line, column, line + lines, column + columns),
    st.integers(1, 12),
    st.integers(1, 40),
    st.integers(0, 2),
    st.integers(0, 40),
)


@given(
    st.lists(st.lists(spans, min_size=1, max_size=3), max_size=4),
    st.text(st.characters(codec="utf-8"), max_size=200),
    st.booleans(),
)
def test_any_spans_on_any_text_give_frames(places: list[list[Span]], source: str, ascii: bool) -> None:
    found = [make(labels=tuple(Label(span, "x") for span in some)) for some in places]
    text = render_text(found, lambda _: source, ascii=ascii)
    assert text.count("error[FR0103]") == len(sort_diagnostics(found))
    assert all(line == line.rstrip() for line in text.split("\n"))
