"""Diagnostics → text frames or JSON. Takes values and a way to read source, gives strings; finds and changes nothing.

error[FR0103]: unknown key
   ┌─ ppo.yaml:12:5
12 │     temprature: 0.9
   │     ^^^^^^^^^^ not a key of `generate`
   = help: a key with a near name exists
     12 │     temperature: 0.9
   = see:  flowrl explain FR0103
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

import msgspec

from flowrl.diag.columns import clean, pad_before, window
from flowrl.diag.diagnostic import Diagnostic, Help, Label, Severity

CAP = 20
EXIT_CODES = (70, 5, 4, 2, 1)
"""From the worst to the mildest."""

ReadSource = Callable[[str], str | None]

_COLOURS = {"error": "1;31", "warning": "1;33", "note": "1;36", "gutter": "34", "primary": "31", "secondary": "34"}
_GLYPHS = {"corner": "┌─", "tee": "├─", "bar": "│", "gap": "⋮"}
_ASCII = {"corner": "-->", "tee": "-->", "bar": "|", "gap": "..."}


@dataclass(frozen=True, slots=True)
class _Style:
    color: bool
    width: int
    glyphs: dict[str, str]

    def paint(self, name: str, text: str) -> str:
        return f"\033[{_COLOURS[name]}m{text}\033[0m" if self.color and text else text

    def glyph(self, name: str) -> str:
        return self.paint("gutter", self.glyphs[name])


def sort_diagnostics(diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    """By file, position and code; those without a place come last; equal ones once."""
    unique = {msgspec.json.encode(diagnostic): diagnostic for diagnostic in diagnostics}

    def place(diagnostic: Diagnostic) -> tuple[object, ...]:
        if not diagnostic.labels:
            return (1, "", 0, 0, diagnostic.code)
        span = diagnostic.labels[0].span
        return (0, span.file, span.line, span.column, diagnostic.code)

    return sorted(unique.values(), key=place)


def render_text(
    diagnostics: Iterable[Diagnostic],
    read_source: ReadSource,
    color: bool = False,
    width: int = 100,
    ascii: bool = False,
) -> str:
    """Frames in order of place, a blank line between them, at most twenty and then how many more.

    `read_source` gives the text of a span's file, or None where there is none to show.
    """
    ordered = sort_diagnostics(diagnostics)
    style = _Style(color, width, _ASCII if ascii else _GLYPHS)
    frames = [_frame(diagnostic, read_source, style) for diagnostic in ordered[:CAP]]
    if len(ordered) > CAP:
        frames.append(f"and {len(ordered) - CAP} more\n")
    return "\n".join(frames)


def render_json(diagnostics: Iterable[Diagnostic]) -> str:
    """The same diagnostics as a JSON list, in the same order, without a cap."""
    return msgspec.json.format(msgspec.json.encode(sort_diagnostics(diagnostics)), indent=2).decode()


def exit_code(diagnostics: Iterable[Diagnostic]) -> int:
    """The worst code of the errors among `diagnostics`: 70 > 5 > 4 > 2 > 1; 0 if there are only warnings and notes."""
    codes = {diagnostic.exit_code for diagnostic in diagnostics if diagnostic.severity == Severity.ERROR}
    return next((code for code in EXIT_CODES if code in codes), max(codes, default=0))


def _frame(diagnostic: Diagnostic, read_source: ReadSource, style: _Style) -> str:
    numbers = [label.span.line for label in diagnostic.labels] + [h.span.line for h in diagnostic.helps if h.span]
    gutter = len(str(max(numbers, default=0)))
    head = style.paint(diagnostic.severity, f"{diagnostic.severity}[{diagnostic.code}]")
    lines = [f"{head}: {diagnostic.headline}"]
    lines += _places(diagnostic.labels, read_source, gutter, style)
    # Without a place the first note says what the primary label would say.
    first = 0 if diagnostic.labels else 1
    for note in diagnostic.notes[:first]:
        lines += _note(note, gutter)
    if diagnostic.why:
        lines += _entry("why:", diagnostic.why, gutter, style)
    for note in diagnostic.notes[first:]:
        lines += _note(note, gutter)
    for help_ in diagnostic.helps:
        lines += _help(help_, gutter, style)
    if diagnostic.severity == Severity.WARNING:
        lines += _entry("mute:", f"allow: [{diagnostic.code}]", gutter, style)
    lines += _entry("see:", f"flowrl explain {diagnostic.code}", gutter, style)
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _places(labels: Sequence[Label], read_source: ReadSource, gutter: int, style: _Style) -> list[str]:
    """The source lines of all labels: the primary's file first, each file's lines in their order."""
    lines: list[str] = []
    by_file: dict[str, list[tuple[int, Label]]] = {}
    for index, label in enumerate(labels):
        by_file.setdefault(label.span.file, []).append((index, label))
    for number, (file, marked) in enumerate(by_file.items()):
        first = min(marked, key=lambda item: item[0])[1].span
        lines.append(f"{' ' * gutter} {style.glyph('tee' if number else 'corner')} {clean(str(first))}")
        text = read_source(file)
        lines += _bare(marked, gutter, style) if text is None else _source(marked, text, gutter, style)
    return lines


def _bare(marked: list[tuple[int, Label]], gutter: int, style: _Style) -> list[str]:
    """Labels of a file that cannot be read."""
    return [f"{' ' * gutter} {style.glyph('bar')} {clean(label.text)}" for _, label in marked if label.text]


def _source(marked: list[tuple[int, Label]], text: str, gutter: int, style: _Style) -> list[str]:
    source = text.split("\n")
    lines: list[str] = []
    last = None
    for number, group in groupby(sorted(marked, key=lambda item: item[1].span.line), lambda item: item[1].span.line):
        if last is not None and number > last + 1:
            lines.append(f"{' ' * gutter} {style.glyph('gap')}")
        row = source[number - 1].rstrip("\r") if number <= len(source) else ""
        lines += _marked_line(row, number, list(group), gutter, style)
        last = number
    return lines


def _marked_line(row: str, number: int, marked: list[tuple[int, Label]], gutter: int, style: _Style) -> list[str]:
    """One source line and under it one line for each of its labels: `^` for the primary one, `-` for the others."""
    start, shown = window(row, min(label.span.column for _, label in marked), 2 * style.width)
    lines = [f"{style.paint('gutter', f'{number:>{gutter}}')} {style.glyph('bar')} {clean(shown)}"]
    for index, label in sorted(marked, key=lambda item: (item[1].span.column, item[0])):
        span = label.span
        first = span.column - 1 - start
        end = span.end_column - 1 - start if span.end_line == span.line else len(shown.rstrip())
        mark = ("-" if index else "^") * max(pad_before(shown, end) - pad_before(shown, first), 1)
        painted = style.paint("secondary" if index else "primary", f"{mark} {clean(label.text)}".rstrip())
        lines.append(f"{' ' * gutter} {style.glyph('bar')} {' ' * pad_before(shown, first)}{painted}")
    return lines


def _entry(title: str, text: str, gutter: int, style: _Style) -> list[str]:
    """`= title text`, wrapped to the width."""
    first = f"{' ' * gutter} = {title:<5} "
    rest = " " * len(first)
    lines: list[str] = []
    for paragraph in clean(text, keep_lines=True).split("\n"):
        lines += textwrap.wrap(
            paragraph,
            max(style.width, 40),
            initial_indent=rest if lines else first,
            subsequent_indent=rest,
            break_long_words=False,
            break_on_hyphens=False,
        ) or [rest if lines else first]
    return lines


def _note(note: str, gutter: int) -> list[str]:
    first, *rest = clean(note, keep_lines=True).split("\n")
    return [f"{' ' * gutter} = {first}", *(f"{' ' * gutter}   {line}" for line in rest)]


def _help(help_: Help, gutter: int, style: _Style) -> list[str]:
    lines = _entry("help:", help_.text, gutter, style)
    if help_.replacement is None:
        return lines
    for offset, line in enumerate(help_.replacement.split("\n")):
        number = f"{help_.span.line + offset:>{gutter}}" if help_.span else " " * gutter
        lines.append(f"{' ' * (gutter + 3)}{style.paint('gutter', number)} {style.glyph('bar')} {clean(line)}")
    return lines
