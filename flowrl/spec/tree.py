"""The located tree: what a user wrote as plain values, each key and value with its span and where it came from.

Both front doors make it (yaml_tree.py from text, builder.py from calls); presets, flags and variables change it by
making new trees; load.py turns it into documents. It knows neither YAML nor the language.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from flowrl.diag.span import Span
from flowrl.spec.flow import Origin, OriginKind, Path

Plain = str | int | float | bool | None


class Unknown(str):
    """Stands for the value of a variable that could not be rendered, which is told where the variable is written. What
    it makes impossible elsewhere has no fault of its own."""

    __slots__ = ()


MARKS = ("{{", "{%", "{#")
"""What a template starts with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalarNode:
    value: Plain
    span: Span
    kind: OriginKind = OriginKind.FILE
    text: str = ""
    """As written, without quotes."""
    plain: bool = True
    """Written without quotes, so its type follows from its text."""
    anchor: Span | None = None
    """Where it is defined, if `span` is the place of an alias."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceNode:
    items: tuple[Node, ...]
    span: Span
    kind: OriginKind = OriginKind.FILE
    flow: bool = False
    """Written in brackets."""
    anchor: Span | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    key: str
    key_span: Span
    node: Node
    kind: OriginKind = OriginKind.FILE
    merged: Span | None = None
    """Where `<<: *anchor` brought it in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MappingNode:
    entries: dict[str, Entry] = field(default_factory=dict[str, Entry])
    span: Span
    kind: OriginKind = OriginKind.FILE
    anchor: Span | None = None

    def get(self, key: str) -> Node | None:
        entry = self.entries.get(key)
        return entry.node if entry is not None else None

    def with_entry(self, entry: Entry) -> MappingNode:
        """The same mapping with `entry` in the place of an older one of its key, else at the end."""
        return replace(self, entries={**self.entries, entry.key: entry})

    def without(self, *keys: str) -> MappingNode:
        return replace(self, entries={key: entry for key, entry in self.entries.items() if key not in keys})


Node = ScalarNode | SequenceNode | MappingNode


def may_be_template(node: ScalarNode) -> bool:
    """Whether a text holds the mark of a template. Texts from Python are what they are."""
    if node.kind is OriginKind.PYTHON or not isinstance(node.value, str):
        return False
    return any(mark in node.value for mark in MARKS)


def plain_value(node: Node) -> Any:
    """The tree as dicts, lists and scalars."""
    if isinstance(node, MappingNode):
        return {key: plain_value(entry.node) for key, entry in node.entries.items()}
    if isinstance(node, SequenceNode):
        return [plain_value(item) for item in node.items]
    return node.value


def child(node: Node, key: str | int) -> Node | None:
    """The value under `key` of a mapping or at index `key` of a list; None if there is none."""
    if isinstance(node, MappingNode):
        return node.get(key) if isinstance(key, str) else None
    if isinstance(node, SequenceNode) and isinstance(key, int) and key < len(node.items):
        return node.items[key]
    return None


def descend(node: Node, path: Path) -> Node | None:
    found: Node | None = node
    for key in path:
        found = child(found, key) if found is not None else None
    return found


def merged_at(node: Node, path: Path) -> Span | None:
    """The merge (`<<`) that brought in the value at `path`, or the nearest mapping around it."""
    merge = None
    for key in path:
        if isinstance(node, MappingNode) and str(key) in node.entries:
            merge = node.entries[str(key)].merged or merge
        below = child(node, key)
        if below is None:
            break
        node = below
    return merge


def node_span(node: Node) -> Span:
    """Where a value stands: a long collection is shown by its first line."""
    return node.span


def key_span(root: Node, path: Path) -> Span:
    """The span of the key of the value at `path`: for list items and the root, that of the value."""
    parent = descend(root, path[:-1]) if path else None
    if isinstance(parent, MappingNode) and isinstance(path[-1], str) and path[-1] in parent.entries:
        return parent.entries[path[-1]].key_span
    found = descend(root, path)
    return found.span if found is not None else root.span


def walk(node: Node, path: Path = ()) -> Iterator[tuple[Path, Node]]:
    """Every value below `node` with its path."""
    left = _below(node, path)
    while left:
        found = left.pop()
        yield found
        if not isinstance(found[1], ScalarNode):
            left += _below(found[1], found[0])


def scalars(node: Node) -> Iterator[ScalarNode]:
    """Every scalar of `node`, itself too, in the order written."""
    left = [node]
    while left:
        found = left.pop()
        if isinstance(found, ScalarNode):
            yield found
        elif isinstance(found, MappingNode):
            left += [entry.node for entry in reversed(found.entries.values())]
        else:
            left += reversed(found.items)


def _below(node: Node, path: Path) -> list[tuple[Path, Node]]:
    """The values directly below, the last one first."""
    if isinstance(node, MappingNode):
        return [((*path, key), entry.node) for key, entry in reversed(node.entries.items())]
    if isinstance(node, SequenceNode):
        return [((*path, index), node.items[index]) for index in range(len(node.items) - 1, -1, -1)]
    return []


def merge(base: Node, over: Node) -> Node:
    """Mappings deep, everything else replaced by `over`."""
    if not (isinstance(base, MappingNode) and isinstance(over, MappingNode)):
        return over
    entries = dict(base.entries)
    for key, entry in over.entries.items():
        below = entries.get(key)
        entries[key] = replace(entry, node=merge(below.node, entry.node)) if below is not None else entry
    return replace(over, entries=entries)


def origins(node: Node) -> Iterator[tuple[Path, Origin]]:
    """The origin of every value below `node`, itself first."""
    left: list[tuple[Path, Node, Span | None]] = [((), node, None)]
    while left:
        path, found, key_span = left.pop()
        yield path, Origin(found.kind, found.span, key_span)
        if isinstance(found, MappingNode):
            left += [((*path, key), entry.node, entry.key_span) for key, entry in reversed(found.entries.items())]
        elif isinstance(found, SequenceNode):
            left += [((*path, index), found.items[index], None) for index in range(len(found.items) - 1, -1, -1)]


def subspan(node: ScalarNode, start: int, end: int) -> Span:
    """The place of characters [start, end) of a scalar; all of it if they cannot be told apart in the source."""
    span = node.span
    quotes = span.end_column - span.column - len(node.text)
    if span.line != span.end_line or quotes != (0 if node.plain else 2) or node.anchor is not None:
        return span
    if end > len(node.text):  # of what a template makes of it
        return span
    first = span.column + quotes // 2
    return Span(span.file, span.line, first + start, span.line, first + max(end, start + 1))
