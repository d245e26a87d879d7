"""Helps → edits of text: the part of a line that a replacement changes, and a text with edits made. Pure; files are
read and written elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from flowrl.diag.diagnostic import Diagnostic, Help, Respelt
from flowrl.diag.span import Span

BOM = "\ufeff"


@dataclass(frozen=True, slots=True, order=True)
class Edit:
    """Characters `start` to `end` (from 0, half open) of line `line` (from 1) become `text`."""

    line: int
    start: int
    end: int
    text: str


def edit_of(help_: Help, source: str) -> Edit | None:
    """The smallest edit that makes the help's line of `source` its replacement. None for a help without one, of
    several lines, or of a line that is not there."""
    span = help_.span
    if span is None or help_.replacement is None or span.line != span.end_line or "\n" in help_.replacement:
        return None
    lines = source.removeprefix(BOM).split("\n")
    if not 0 < span.line <= len(lines):
        return None
    old, new = lines[span.line - 1].removesuffix("\r"), help_.replacement.removesuffix("\r")
    if old == new:
        return None
    shorter = min(len(old), len(new))
    before = next((i for i in range(shorter) if old[i] != new[i]), shorter)
    # Characters of the span itself that happen to agree are replaced as well: a whole word is easier to read.
    before = min(before, max(span.column - 1, 0))
    behind = next((i for i in range(shorter - before) if old[-1 - i] != new[-1 - i]), shorter - before)
    behind = min(behind, max(len(old) - (span.end_column - 1), 0))
    return Edit(span.line, before, len(old) - behind, new[before : len(new) - behind])


def certain_edits(diagnostics: Iterable[Diagnostic], file: str, source: str) -> list[Edit]:
    """The edits of `file` that are certain, in order. Of two that touch, the first stays: the other may still be right
    after a new check."""
    helps = [h for d in diagnostics for h in d.helps if h.certain and h.span is not None and h.span.file == file]
    edits = sorted({edit for help_ in helps if (edit := edit_of(help_, source)) is not None})
    kept: list[Edit] = []
    for edit in edits:
        if not kept or (edit.line, edit.start) > (kept[-1].line, kept[-1].end):
            kept.append(edit)
    return kept


def apply(edits: Iterable[Edit], source: str) -> str:
    """`source` with the edits, which do not touch each other, made. Line ends and all else stay as they are."""
    mark = BOM if source.startswith(BOM) else ""
    lines = source.removeprefix(BOM).split("\n")
    for edit in sorted(edits, reverse=True):
        row = lines[edit.line - 1]
        lines[edit.line - 1] = row[: edit.start] + edit.text + row[edit.end :]
    return mark + "\n".join(lines)


def with_lines(diagnostics: Iterable[Diagnostic], text: Mapping[str, str]) -> list[Diagnostic]:
    """The diagnostics with a corrected line for each respelling whose words stand in the text of its file, and with its
    words only for the others."""
    return [replace(each, helps=tuple(_with_line(h, text) for h in each.helps)) for each in diagnostics]


def _with_line(help_: Help, text: Mapping[str, str]) -> Help:
    if not isinstance(help_, Respelt):
        return help_
    bare, span = Help(text=help_.text, certain=False), help_.span
    lines = text.get(span.file, "").split("\n") if span is not None and span.line == span.end_line else []
    if span is None or span.line > len(lines):
        return bare
    row = lines[span.line - 1]
    before, at, after = row[: span.column - 1], row[span.column - 1 : span.end_column - 1], row[span.end_column - 1 :]
    if at.count(help_.old) != 1:
        return bare
    line = before + at.replace(help_.old, help_.new, 1) + after
    return Help(text=help_.text, span=span, replacement=line, certain=help_.certain)


def region(edit: Edit, file: str) -> Span:
    """The characters that the edit replaces."""
    return Span(file, edit.line, edit.start + 1, edit.line, edit.end + 1)
