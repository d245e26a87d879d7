"""One stage of a FlowSpec as the lowering sees it: documents, places in the source, and a list of problems.

Takes spec values only; what it gives out knows no YAML and no pydantic.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from msgspec.structs import replace

from flowrl.compiler.binding import ANY_DATA
from flowrl.diag.diagnostic import Diagnostic, Help, diagnose
from flowrl.diag.near import near_names
from flowrl.diag.span import Span
from flowrl.spec.flow import FlowSpec, OriginKind
from flowrl.spec.schema import StageDocument

LISTED = 8
"""A list of known names longer than this is not printed whole."""


@lru_cache(maxsize=8)
def _lines(text: str) -> list[str]:
    return text.split("\n")


@dataclass(frozen=True, slots=True)
class Stage:
    spec: FlowSpec
    index: int
    problems: list[Diagnostic] = field(default_factory=list[Diagnostic])
    read: dict[str, ast.Module] = field(default_factory=dict[str, ast.Module])
    """The user's Python files that were read already, by their place in the folder."""

    @property
    def document(self) -> StageDocument:
        return self.spec.stages[self.index]

    @property
    def folder(self) -> str:
        return self.spec.folder

    def span(self, *path: str | int) -> Span | None:
        """Of the value at `path` in the stage, else of the nearest thing around it."""
        return self.spec.span(*self.spec.stage_path(self.index, *path))

    def key_span(self, *path: str | int) -> Span | None:
        return self.spec.key_span(*self.spec.stage_path(self.index, *path))

    def written(self, *path: str | int) -> Span | None:
        """Of the value at exactly `path`, or None if nobody wrote it."""
        origin = self.spec.origins.get(self.spec.stage_path(self.index, *path))
        return None if origin is None or origin.kind is OriginKind.DEFAULT else origin.value or origin.key

    def written_keys(self, *path: str | int, keys: Iterable[str]) -> dict[str, Span]:
        """Where each of `keys` stands under `path`, for those that are written."""
        found = ((key, self.written(*path, key)) for key in keys)
        return {key: span for key, span in found if span is not None}

    def refuse(self, code: str, span: Span | None, helps: Iterable[Help] = (), **facts: object) -> None:
        self.problems.append(diagnose(code, span, also=(), notes=(), helps=tuple(helps), **facts))

    def refuse_name(self, code: str, span: Span | None, name: str, known: Iterable[str], **facts: object) -> None:
        """Refuse an unknown name: the near ones if there are any, else all that are known."""
        names = sorted(set(known))
        near = near_names(name, names)
        helps = [self.edit(f"a near name exists: `{near[0]}`", span, name, near[0])] if near else []
        shown = ", ".join(names[:LISTED]) + (", …" if len(names) > LISTED else "")
        self.refuse(code, span, helps, name=name, known=shown or "there is none", **facts)

    def with_data(self, faults: Sequence[Diagnostic]) -> list[Diagnostic]:
        """Faults whose helps name the data set of the stage, where it has exactly one."""
        if len(self.document.data) != 1:
            return list(faults)
        name = f"data.{next(iter(self.document.data))}"
        named = [[replace(h, text=h.text.replace(ANY_DATA, name)) for h in fault.helps] for fault in faults]
        return [replace(fault, helps=tuple(helps)) for fault, helps in zip(faults, named, strict=True)]

    def edit(self, text: str, span: Span | None, old: str, new: str) -> Help:
        """The source line at `span` with `new` for `old`; only the words where the line cannot be shown."""
        source = self.spec.text.get(span.file) if span is not None else None
        lines = [] if source is None else _lines(source)
        if span is None or span.line != span.end_line or span.line > len(lines):
            return Help(text=text)
        before, after = lines[span.line - 1][: span.column - 1], lines[span.line - 1][span.column - 1 :]
        if old not in after:
            return Help(text=text)
        return Help(text=text, span=span, replacement=before + after.replace(old, new, 1))
