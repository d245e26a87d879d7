"""FlowSpec → YAML with one value a line, each with a comment that says where it came from; defaults are filled in.

    actor_train:
      update:
        loss: ppo                # preset grpo:11
        clip_ratio: 0.1          # flow.yaml:9
        entropy_coef: 0.0        # default

The text loads to the same documents. Keys that stand for nothing (null, empty) are shown where somebody wrote them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from flowrl.spec.check import INHERITED, SHARED
from flowrl.spec.flow import FlowSpec, Origin, OriginKind, Path
from flowrl.spec.presets import PREFIX
from flowrl.spec.roles import LABEL_PREFIX, LABELLED
from flowrl.spec.write import FIRST, edge_text, escaped, scalar

COLUMN = 60
"""Where comments start, unless the line is longer."""
_ROLE_DEPTH = 2
"""Keys between a flow and one of its roles."""


def expanded(spec: FlowSpec, idle: Collection[Path] = ()) -> str:
    """The whole resolved flow. What the user did not write at the paths in `idle` (defaults, keys of a preset) is left
    out: there it changes nothing, and would be refused if it were written."""
    whole = spec.document.model_dump(by_alias=True, mode="json")
    printer = _Printer(spec, frozenset(idle))
    lines = (
        f"{line.text:<{COLUMN}}  # {line.origin}" if line.origin else line.text for line in printer.flow(whole, ())
    )
    return "".join(f"{line}\n" for line in lines)


def origin_words(origin: Origin) -> str:
    """`preset grpo:14`, `flow.yaml:7`, `--set` or `default`."""
    place = origin.value or origin.key
    if origin.kind is OriginKind.DEFAULT or place is None:
        return str(OriginKind.DEFAULT)
    if origin.kind is OriginKind.FLAG:
        return place.file
    if place.file.startswith(PREFIX):
        return f"preset {place.file.removeprefix(PREFIX)}:{place.line}"
    return f"{place.file}:{place.line}"


@dataclass(frozen=True, slots=True)
class _Line:
    text: str
    origin: str = ""


@dataclass(frozen=True, slots=True)
class _Printer:
    spec: FlowSpec
    idle: frozenset[Path]

    def flow(self, flow: Mapping[str, Any], path: Path) -> Iterator[_Line]:
        """The keys of the document, or of a stage at `path`. Beside stages stands what they share."""
        for key, value in flow.items():
            if (not path and flow.get("stages") and key not in SHARED) or not self._shown((*path, key), value):
                continue
            if key == "stages":
                yield _Line("stages:")
                for index, stage in enumerate(value):
                    yield from _item(list(self.flow(stage, ("stages", index))))
            elif key == "edges" and value:
                yield from self._edges(value, (*path, key))
            elif key == "roles":
                yield from self._entry(key, {name: _role(role) for name, role in value.items()}, (*path, key), "")
            else:
                yield from self._entry(key, value, (*path, key), "")

    def _entry(self, key: str, value: Any, path: Path, indent: str) -> Iterator[_Line]:
        """`key: value`, or the key with its entries below."""
        name = f"{indent}{scalar(key)}:"
        below = list(self._below(value, path, f"{indent}  "))
        if not below:
            yield _Line(f"{name} {_text(value)}", origin_words(self.spec.origin_of(*path)))
            return
        yield _Line(name)
        yield from below

    def _below(self, value: Any, path: Path, indent: str) -> Iterator[_Line]:
        if isinstance(value, dict):
            for key, item in cast("dict[str, Any]", value).items():
                if self._shown((*path, key), item):
                    yield from self._entry(key, item, (*path, key), indent)
        elif isinstance(value, list):
            for index, item in enumerate(cast("list[Any]", value)):
                yield from self._list_item(item, (*path, index), path, indent)

    def _list_item(self, item: Any, path: Path, parent: Path, indent: str) -> Iterator[_Line]:
        if isinstance(item, dict | list) and item:
            lines = list(self._below(item, path, ""))
            yield from (_Line(f"{indent}{line.text}", line.origin) for line in _item(lines))
            return
        origin = self.spec.origins.get(path) or self.spec.origin_of(*parent)
        yield _Line(f"{indent}- {_text(item)}", origin_words(origin))

    def _edges(self, edges: list[dict[str, Any]], path: Path) -> Iterator[_Line]:
        yield _Line("edges:")
        for index, edge in enumerate(edges):
            here: Path = (*path, index)
            origin = origin_words(self.spec.origin_of(*here))
            text = scalar(edge_text(edge))
            given = {key: value for key, value in edge.items() if (*here, key) in self.spec.origins}
            rest = {key: value for key, value in given.items() if key not in ("sources", "arrow", "targets")}
            if not rest:
                yield _Line(f"  - {text}", origin)
                continue
            yield _Line(f"  - edge: {text}", origin)
            for key, value in rest.items():
                yield from self._entry(key, value, (*here, key), "    ")

    def _shown(self, path: Path, value: Any) -> bool:
        """Whether somebody wrote it, or it is a default that says something. What a stage inherits stands above."""
        if path in self.idle and not self.spec.is_given(*path):
            return False
        if path in self.spec.origins:
            return True
        if path[:1] == ("stages",) and len(path) > _ROLE_DEPTH and path[_ROLE_DEPTH] in (*INHERITED, "vars"):
            return False
        return value not in (None, {}, []) and not self._is_idle(value, path)

    def _is_idle(self, value: Any, path: Path) -> bool:
        """Whether nothing of a default mapping would be shown."""
        if not isinstance(value, dict):
            return False
        return not any(self._shown((*path, key), item) for key, item in cast("dict[str, Any]", value).items())


def _text(value: Any) -> str:
    """A scalar or an empty collection."""
    if isinstance(value, dict):
        return "{}"
    return "[]" if isinstance(value, list) else scalar(escaped(value))


def _item(lines: list[_Line]) -> Iterator[_Line]:
    """The lines as one entry of a list."""
    for index, line in enumerate(lines):
        yield _Line(f"{'- ' if index == 0 else '  '}{line.text}", line.origin)


def _role(role: dict[str, Any]) -> dict[str, Any]:
    """As it is written: its kind first, each labelled call under a key of its own."""
    calls = cast("dict[str, Any]", role.get(LABELLED, {}))
    labelled = {f"{LABEL_PREFIX}{label}": item for label, item in calls.items()}
    first = {key: role[key] for key in FIRST if key in role}
    return {**first, **{key: value for key, value in role.items() if key != LABELLED}, **labelled}
