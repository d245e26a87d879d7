"""Faults found after loading → with what only the flow's text can add: corrected lines, and the places of presets.

Takes diagnostics whose places are known, gives the same ones completed. Finds no fault itself.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from flowrl.diag.diagnostic import Diagnostic, Help, Respelt
from flowrl.diag.edits import with_lines
from flowrl.diag.span import Span
from flowrl.spec.flow import FlowSpec
from flowrl.spec.preset_labels import with_presets


def with_sources(spec: FlowSpec, diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Each diagnostic with the corrected lines of its helps. A word that a variable brought is corrected there; a
    preset's line is nothing that the user can edit."""
    own = {file: text for file, text in spec.text.items() if file not in spec.asked}
    moved = [replace(each, helps=tuple(_at_variable(spec, help_) for help_ in each.helps)) for each in diagnostics]
    return with_presets(spec, with_lines(moved, own))


def _at_variable(spec: FlowSpec, help_: Help) -> Help:
    if not isinstance(help_, Respelt) or help_.span is None or "{{" not in _text_at(spec, help_.span):
        return help_
    values = (origin.value for path, origin in spec.origins.items() if path[-2:-1] == ("vars",))
    found = {span for span in values if span is not None and help_.old in _text_at(spec, span)}
    return replace(help_, span=found.pop()) if len(found) == 1 else help_


def _text_at(spec: FlowSpec, span: Span) -> str:
    """What stands at a span of one line; empty without source."""
    lines = spec.text.get(span.file, "").split("\n")
    if span.line != span.end_line or span.line > len(lines):
        return ""
    return lines[span.line - 1][span.column - 1 : span.end_column - 1]
