"""Digests: sha256 of what a value means, so that a plan can tell whether it still belongs to its flow.

Left out: spans (where something was written) and the order of roles, ops, edges and models of a graph, which means
nothing. Kept: the order of everything else; a program's instructions are a sequence.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, cast

import msgspec

from flowrl.diag.span import Span
from flowrl.graph.graph import Graph
from flowrl.plan.io import canonical

UNORDERED: Mapping[str, str] = {
    "models": "name",
    "roles": "name",
    "ops": "id",
    "declared": "id",
    "edges": "id",
    "removed": "id",
}
"""Fields of a Graph whose order means nothing, with the key that they are sorted by."""


def digest(value: object) -> str:
    """sha256 hex of the canonical JSON of `value` without its spans. Equal for values that mean the same."""
    return hashlib.sha256(canonical(meaning(value))).hexdigest()


def digest_file(path: Path) -> str | None:
    """sha256 hex of a file's bytes; None if it can't be read, or is a device or pipe, which may have no end."""
    if not path.is_file():
        return None
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def catalogue_digest() -> str:
    """sha256 hex of the device and model cards: what the figures of a plan come from, until a profile is measured."""
    cards = sorted(_cards(files("flowrl.machine").joinpath("catalogue"), ""))
    return hashlib.sha256(b"".join(content for _, content in cards)).hexdigest()


def _cards(folder: Traversable, path: str) -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _cards(entry, f"{path}{entry.name}/")
        elif entry.name.endswith(".toml"):
            yield f"{path}{entry.name}", entry.read_bytes()


def meaning(value: object) -> Any:
    """`value` as plain data, without spans, with the unordered parts of graphs sorted."""
    if isinstance(value, Graph):
        plain = _fields(value)
        return {name: _sorted(name, item) if name in UNORDERED else item for name, item in plain.items()}
    if isinstance(value, msgspec.Struct):
        return _fields(value)
    if isinstance(value, Mapping):
        items = cast("Mapping[str, object]", value).items()
        return {key: meaning(item) for key, item in items if not _is_place(item)}
    if isinstance(value, list | tuple):
        return [meaning(item) for item in cast("tuple[object, ...]", value)]
    if isinstance(value, frozenset | set):
        return sorted(meaning(item) for item in cast("frozenset[object]", value))
    return msgspec.to_builtins(value)


def _fields(value: msgspec.Struct) -> dict[str, Any]:
    """Fields by name, with the tag of a tagged struct; those that hold a place in a source are left out."""
    config = value.__struct_config__
    tag = {} if config.tag is None else {config.tag_field or "type": config.tag}
    named = ((name, getattr(value, name)) for name in value.__struct_fields__)
    return tag | {name: meaning(item) for name, item in named if not _is_place(item) and not _holds_places(name)}


def _is_place(value: object) -> bool:
    return isinstance(value, Span)


def _holds_places(name: str) -> bool:
    """`span: None` and `spans: {}` must not differ from a span that is there."""
    return name == "span" or name == "spans" or name.endswith(("_span", "_spans"))


def _sorted(name: str, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(items, key=lambda item: str(item[UNORDERED[name]]))
