"""Python values → nodes of the raw tree, at the place of the call that gave them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, cast

from flowrl.diag.span import Span
from flowrl.spec.flow import OriginKind
from flowrl.spec.tree import Entry, MappingNode, Node, ScalarNode, SequenceNode

PYTHON = OriginKind.PYTHON

Name = Callable[[Any], str]
"""Spells a value that is neither plain nor a collection; raises TypeError for what a flow cannot hold."""


def node_of(value: Any, span: Span, name: Name) -> Node:
    """The value with everything in it at `span`."""
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value)
        spelt = {_key(key, name): node_of(item, span, name) for key, item in items.items()}
        return mapping(span, [entry(key, span, node) for key, node in spelt.items()])
    if isinstance(value, (list, tuple)):
        some = cast("Sequence[Any]", value)
        return SequenceNode(items=tuple(node_of(item, span, name) for item in some), span=span, kind=PYTHON)
    if isinstance(value, Enum):
        value = value.value
    if value is None or isinstance(value, bool | int | float | str):
        return ScalarNode(value=value, span=span, kind=PYTHON, text=str(value), plain=not isinstance(value, str))
    if isinstance(value, os.PathLike):
        value = os.fspath(cast("os.PathLike[str]", value))
        return ScalarNode(value=value, span=span, kind=PYTHON, text=str(value), plain=False)
    return ScalarNode(value=name(value), span=span, kind=PYTHON, plain=False)


def _key(key: Any, name: Name) -> str:
    """A key as text: handles stand for their names."""
    return str(key) if key is None or isinstance(key, str | bool | int | float) else name(key)


def entry(key: str, key_span: Span, node: Node) -> Entry:
    return Entry(key, key_span, node, PYTHON)


def mapping(span: Span, entries: Sequence[Entry] = ()) -> MappingNode:
    return MappingNode(entries={item.key: item for item in entries}, span=span, kind=PYTHON)
