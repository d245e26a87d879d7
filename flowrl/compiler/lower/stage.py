"""One stage of a FlowSpec as the lowering sees it: documents, places in the source, and a list of problems.

Takes spec values only; what it gives out knows no YAML and no pydantic.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from flowrl.diag.diagnostic import Diagnostic, Help, diagnose
from flowrl.diag.near import near_names
from flowrl.diag.span import Span
from flowrl.spec.flow import FlowSpec, OriginKind
from flowrl.spec.schema import StageDocument

LISTED = 8
"""A list of known names longer than this is not printed whole."""


@dataclass(frozen=True, slots=True)
class Stage:
    spec: FlowSpec
    index: int
    problems: list[Diagnostic] = field(default_factory=list[Diagnostic])

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
        helps = [Help(text=f"a name close to it exists: `{near[0]}`")] if near else []
        shown = ", ".join(names[:LISTED]) + (", …" if len(names) > LISTED else "")
        self.refuse(code, span, helps, name=name, known=shown or "there is none", **facts)
