"""Python values → nodes of the raw tree, at the place of the call that gave them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, cast

from flowrl.diag.diagnostic import Diagnostic, diagnose
from flowrl.diag.span import Span
from flowrl.spec.flow import OriginKind
from flowrl.spec.tree import Entry, MappingNode, Node, ScalarNode, SequenceNode, walk
from flowrl.spec.yaml_tree import LARGEST_DEPTH, LONE_SURROGATE

PYTHON = OriginKind.PYTHON

Name = Callable[[Any], str]
"""Spells a value that is neither plain nor a collection; raises TypeError for what a flow cannot hold."""


def node_of(value: Any, span: Span, name: Name, depth: int = 0) -> Node:
    """The value with everything in it at `span`. A list that holds itself ends where no flow may be deeper."""
    if depth > LARGEST_DEPTH:
        return mapping(span)
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value)
        spelt = {_key(key, name): node_of(item, span, name, depth + 1) for key, item in items.items()}
        return mapping(span, [entry(key, span, node) for key, node in spelt.items()])
    if isinstance(value, (list, tuple)):
        some = cast("Sequence[Any]", value)
        return SequenceNode(items=tuple(node_of(item, span, name, depth + 1) for item in some), span=span, kind=PYTHON)
    if isinstance(value, Enum):
        value = value.value
    if value is None or isinstance(value, bool | int | float | str):
        return ScalarNode(value=value, span=span, kind=PYTHON, text=str(value), plain=not isinstance(value, str))
    if isinstance(value, os.PathLike):
        value = os.fspath(cast("os.PathLike[str]", value))
        return ScalarNode(value=value, span=span, kind=PYTHON, text=str(value), plain=False)
    return ScalarNode(value=name(value), span=span, kind=PYTHON, plain=False)


def faults_of(root: Node) -> Iterator[Diagnostic]:
    """What no YAML can hold: empty keys, halves of characters, and collections too deep in one another."""
    for path, node in walk(root):
        if path[-1] == "":
            yield diagnose("FR0013", node.span)
        if not isinstance(node, ScalarNode) and len(path) == LARGEST_DEPTH:
            yield diagnose("FR0005", node.span, limit=LARGEST_DEPTH)
        half = LONE_SURROGATE.search(f"{path[-1]}{node.value if isinstance(node, ScalarNode) else ''}")
        if half is not None:
            yield diagnose("FR0017", node.span, character=f"U+{ord(half.group()):04X}")


def _key(key: Any, name: Name) -> str:
    """A key as text: handles stand for their names."""
    return str(key) if key is None or isinstance(key, str | bool | int | float) else name(key)


def entry(key: str, key_span: Span, node: Node) -> Entry:
    return Entry(key, key_span, node, PYTHON)


def mapping(span: Span, entries: Sequence[Entry] = ()) -> MappingNode:
    return MappingNode(entries={item.key: item for item in entries}, span=span, kind=PYTHON)
