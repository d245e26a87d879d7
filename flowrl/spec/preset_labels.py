"""Faults found after loading that lie in a preset: they get the line that asks for it, and the key to override.

Takes diagnostics whose places are known, gives the same with a label and a help more. Loading labels its own faults.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from flowrl.diag.diagnostic import Diagnostic, Help, Label
from flowrl.diag.span import Span
from flowrl.spec.flow import FlowSpec, Path


def with_presets(spec: FlowSpec, diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Each diagnostic, completed if its first place is in a preset and no other one is in the user's text."""
    return [_completed(spec, diagnostic) for diagnostic in diagnostics]


def _completed(spec: FlowSpec, diagnostic: Diagnostic) -> Diagnostic:
    files = [label.span.file for label in diagnostic.labels]
    if not files or any(file not in spec.asked for file in files):
        return diagnostic
    asked = Label(spec.asked[files[0]], "from this preset")
    path = _path_of(spec, diagnostic.labels[0].span)
    # Edges add; what is to be drawn instead only the diagnostic itself can say.
    if not path or "edges" in path:
        return replace(diagnostic, labels=(*diagnostic.labels, asked))
    override = Help(text=f"override `{'.'.join(str(part) for part in path)}` in the flow")
    return replace(diagnostic, labels=(*diagnostic.labels, asked), helps=(*diagnostic.helps, override))


def _path_of(spec: FlowSpec, span: Span) -> Path:
    """The longest path whose key or value stands at `span`; empty if there is none."""
    found = [path for path, origin in spec.origins.items() if span in (origin.value, origin.key)]
    return max(found, key=len, default=())
