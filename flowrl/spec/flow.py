"""FlowSpec: what the user wrote, validated and resolved, with the origin of every value. Both front doors make it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from flowrl.diag.span import Span
from flowrl.spec.schema import FlowDocument, StageDocument

Path = tuple[str | int, ...]


class OriginKind(StrEnum):
    FILE = "file"
    INCLUDE = "include"
    PRESET = "preset"
    FLAG = "flag"
    PYTHON = "python"
    DEFAULT = "default"


class Origin(msgspec.Struct, frozen=True, gc=False):
    """Where a value came from. `key` is the span of its key in a mapping, `value` that of the value."""

    kind: OriginKind
    value: Span | None = None
    key: Span | None = None


@dataclass(frozen=True, slots=True)
class FlowSpec:
    """A validated flow. `stages` always has one entry or more; each has everything it inherits already in it."""

    document: FlowDocument
    """As written (after presets, variables and flags), before stages inherit."""
    stages: tuple[StageDocument, ...]
    origins: Mapping[Path, Origin]
    """By path in the document: ("stages", 0, "roles", "critic", "update", "clip_value"). A plain flow has no
    "stages" prefix."""
    file: str
    """As the user gave it; `<python>` from the builder."""
    folder: str
    """Where relative paths start."""
    text: Mapping[str, str]
    """Source text by file name, for frames."""
    asked: Mapping[str, Span] = field(default_factory=dict[str, Span])
    """Where a preset is asked for (`use:`), by the file of its spans."""

    def is_given(self, *path: str | int) -> bool:
        """Whether the user wrote the value at `path`: it is no default and comes from no preset."""
        origin = self.origins.get(path)
        return origin is not None and origin.kind not in (OriginKind.DEFAULT, OriginKind.PRESET)

    def span(self, *path: str | int) -> Span | None:
        """Span of the value at `path`, else of its nearest ancestor that has one."""
        for end in range(len(path), -1, -1):
            origin = self.origins.get(path[:end])
            if origin is not None and (origin.value or origin.key):
                return origin.value or origin.key
        return None

    @property
    def includes(self) -> tuple[str, ...]:
        """The files that `include` named and that values came from, as spans name them."""
        places = (o.value or o.key for o in self.origins.values() if o.kind is OriginKind.INCLUDE)
        return tuple(sorted({place.file for place in places if place is not None}))

    def origin_of(self, *path: str | int) -> Origin:
        """Where the value at `path` came from: DEFAULT where nobody wrote it."""
        return self.origins.get(path) or Origin(kind=OriginKind.DEFAULT)

    def key_span(self, *path: str | int) -> Span | None:
        """Span of the key at `path`, else what `span` gives."""
        origin = self.origins.get(path)
        return origin.key if origin is not None and origin.key is not None else self.span(*path)

    def stage_path(self, index: int, *path: str | int) -> Path:
        """The document path of something in stage `index`: inherited values keep the path where they were written."""
        if not self.document.stages:
            return path
        own: Path = ("stages", index, *path)
        return own if own in self.origins or path not in self.origins else path
