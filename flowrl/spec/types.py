"""What the schema allows at a path: the type of a value, the keys of a mapping, and both in words."""

from __future__ import annotations

import types
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

from flowrl.spec.document import Document
from flowrl.spec.edges import ALL_ATTRIBUTES
from flowrl.spec.flow import Path
from flowrl.spec.roles import DEFAULT_KINDS, LABEL_PREFIX, GenerateOverrides, GeneratorRole
from flowrl.spec.sections import EdgeDocument
from flowrl.spec.tree import MappingNode, Node, ScalarNode, SequenceNode, child, descend

_WORDS: dict[Any, str] = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


def options(annotation: Any) -> list[Any]:
    """The members of a union, without None and metadata."""
    if get_origin(annotation) is Annotated:
        return options(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return [member for part in get_args(annotation) for member in options(part)]
    return [] if annotation is type(None) else [annotation]


def is_document(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Document)


def fields(document: type[Document]) -> list[str]:
    """Keys that a user may write."""
    if document is EdgeDocument:
        return ["edge", *ALL_ATTRIBUTES]
    return [name for name in document.model_fields if name not in ("labelled", "declared")]


def known_above(root: type[Document], tree: Node, parent: Path) -> dict[str, str]:
    """For each key of the mapping at `parent` the nearest key above it that the schema knows, where there is one; empty
    where the flow gives the names. Work: one look at each key."""
    node, own = descend(tree, parent), document_at(root, tree, parent)
    known = frozenset(fields(own)) if own is not None else frozenset[str]()
    above: dict[str, str] = {}
    nearest: str | None = None
    for key in node.entries if isinstance(node, MappingNode) and known else ():
        if nearest is not None:
            above[key] = nearest
        nearest = key if key in known else nearest
    return above


def annotation_at(root: type[Document], tree: Node, path: Path) -> Any:
    """The annotation of the value at `path`; None if the schema knows no such path."""
    annotation: Any = root
    node: Node | None = tree
    for index, key in enumerate(path):
        found = [_below(member, key) for member in _fitting(annotation, node, path[:index])]
        annotation = next((below for below in found if below is not None), None)
        node = child(node, key) if node is not None else None
    return annotation


def document_at(root: type[Document], tree: Node, path: Path) -> type[Document] | None:
    """The document class of the mapping at `path`."""
    node: Node | None = tree
    for key in path:
        node = child(node, key) if node is not None else None
    found = _fitting(annotation_at(root, tree, path), node, path)
    return next((cast("type[Document]", member) for member in found if is_document(member)), None)


def _fitting(annotation: Any, node: Node | None, path: Path) -> list[Any]:
    """Members of a union that a value of this form can be; a role is known by its kind."""
    members = options(annotation)
    if len(members) > 1 and isinstance(node, MappingNode) and all(is_document(member) for member in members):
        kind = node.get("kind")
        name = str(kind.value) if isinstance(kind, ScalarNode) else DEFAULT_KINDS.get(str(path[-1]), "")
        return [member for member in members if name in get_args(member.model_fields["kind"].annotation)]
    return members


def _below(annotation: Any, key: str | int) -> Any:
    if is_document(annotation):
        if annotation is GeneratorRole and isinstance(key, str) and key.startswith(LABEL_PREFIX):
            return GenerateOverrides
        field = annotation.model_fields.get(str(key))
        return field.annotation if field is not None else None
    if get_origin(annotation) is dict and isinstance(key, str):
        return get_args(annotation)[1]
    if get_origin(annotation) is tuple and isinstance(key, int):
        return get_args(annotation)[0]
    return None


def expected(annotation: Any) -> str:
    """`a whole number`, `true or false`, `text or a mapping {rank, alpha, targets}` …"""
    words = list(dict.fromkeys(_expected(member) for member in options(annotation)))
    return " or ".join(words) or "another value"


def _expected(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return "one of " + ", ".join(str(value) for value in get_args(annotation))
    if is_document(annotation):
        known = fields(annotation)
        return f"a mapping {{{', '.join(known)}}}" if len(known) <= 4 else "a mapping"
    if get_origin(annotation) is dict:
        return "a mapping"
    if get_origin(annotation) is tuple:
        return "a list"
    return _WORDS.get(annotation, "a value")


def found(node: Node) -> str:
    """The value as written, with the type that YAML gives it."""
    if isinstance(node, MappingNode):
        return "a mapping"
    if isinstance(node, SequenceNode):
        return "a list"
    value = node.value
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return f"`{str(value).lower()}` (true or false)"
    if isinstance(value, str):
        shown = value if len(value) <= 40 else value[:39] + "…"
        return f"the text `{shown}`" if node.plain else f'the text "{shown}"'
    return f"the number {node.text or value}"
