"""Diagnostics are values: a code, places and facts. They are collected, sorted and rendered at the edge.

No message is built where a problem is found: `diagnose` takes a code, spans and facts, and the catalogue holds the
words. `FlowError` is the user's fault and carries diagnostics; `InternalError` is ours. Nothing else crosses a border.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum

import msgspec

from flowrl.diag.catalogue import CODES
from flowrl.diag.span import Span


class Severity(StrEnum):
    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Label(msgspec.Struct, frozen=True):
    """A span with what is to be said about it. The first label of a diagnostic is its primary one."""

    span: Span
    text: str


class Help(msgspec.Struct, frozen=True, kw_only=True):
    """An edit to make. `replacement` is the corrected line(s), shown at `span`; `certain` ones may be applied."""

    text: str
    span: Span | None = None
    replacement: str | None = None
    certain: bool = False


class Respelt(Help, frozen=True, kw_only=True):
    """An edit that is known as words only: `new` for `old` in what stands at `span`. `diag/edits.with_lines` makes the
    Help with the corrected line of it, where the source is known."""

    old: str
    new: str


class Diagnostic(msgspec.Struct, frozen=True, kw_only=True):
    code: str
    severity: Severity
    headline: str
    labels: tuple[Label, ...] = ()
    why: str | None = None
    notes: tuple[str, ...] = ()
    """Extra lines printed as written: a ledger, a backend's exception."""
    helps: tuple[Help, ...] = ()

    @property
    def exit_code(self) -> int:
        return CODES[self.code].exit_code

    def __str__(self) -> str:
        """What it says, without the source: for tracebacks and `print`. `flowrl.diag.render` draws the frame."""
        lines = [f"{self.severity}[{self.code}]: {self.headline}"]
        for label in self.labels:
            lines.append(f"  {label.span.file}:{label.span.line}:{label.span.column}: {label.text}")
        lines += [f"  {note}" for note in self.notes]
        lines += [f"  why: {self.why}"] if self.why else []
        for help_ in self.helps:
            after = "" if help_.replacement is None else f": {help_.replacement.strip()}"
            lines.append(f"  help: {help_.text}{after}")
        return "\n".join(lines)


class FlowError(Exception):
    """The user's fault: one or more diagnostics, no traceback."""

    def __init__(self, diagnostics: Diagnostic | Iterable[Diagnostic]) -> None:
        self.diagnostics: tuple[Diagnostic, ...] = (
            (diagnostics,) if isinstance(diagnostics, Diagnostic) else tuple(diagnostics)
        )
        super().__init__("\n".join(str(d) for d in self.diagnostics))

    def __reduce__(self) -> tuple[type[FlowError], tuple[tuple[Diagnostic, ...]]]:
        return (FlowError, (self.diagnostics,))


class InternalError(Exception):
    """Our fault: shown with its traceback and a hint how to report it."""


def diagnose(
    code: str,
    span: Span | None = None,
    *,
    also: Sequence[Label] = (),
    notes: Sequence[str] = (),
    helps: Sequence[Help] = (),
    **facts: object,
) -> Diagnostic:
    """Make the diagnostic of `code`. `facts` fill the catalogue's templates; `helps` come before the catalogue's own.

    A missing fact is a bug of ours and raises `InternalError`.
    """
    entry = CODES[code]
    try:
        label = entry.label.format(**facts)
        why = entry.why.format(**facts) if entry.why else None
        help_text = entry.help.format(**facts) if entry.help else None
    except (KeyError, IndexError) as missing:
        raise InternalError(f"{code} lacks the fact {missing}") from missing
    own = (Help(text=help_text),) if help_text and not helps else ()
    labels = (() if span is None else (Label(span, label),)) + tuple(also)
    extra = () if span is not None or not label else (label,)
    return Diagnostic(
        code=code,
        severity=Severity(entry.severity),
        headline=entry.headline,
        labels=labels,
        why=why,
        notes=extra + tuple(notes),
        helps=tuple(helps) + own,
    )
