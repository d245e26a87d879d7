"""Keys that installed packages declare for their backends, in blocks `generate`, `update` and `engine`.

A package names a plain mapping by the entry-point group `flowrl.keys`; the entry point has the name of the backend, or
KIND.BACKEND where the keys are those of one kind of role:

    [project.entry-points."flowrl.keys"]
    acme = "acme_flowrl.keys:KEYS"

    KEYS = {"generate": {"beams": {"type": "int", "unit": "beams", "default": 1, "doc": "Beams kept."}}}

`type` is one of TYPES, or a list of the words that the key takes. A key without a default is left to the backend. The
module is imported when a flow has a role with the backend, so it may import nothing that runs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from math import isfinite
from typing import Any, cast

from flowrl.spec.blocks import EngineDocument, GenerateDocument, GenerateOverrides, UpdateDocument

GROUP = "flowrl.keys"
BLOCKS: Mapping[str, tuple[type[Any], ...]] = {
    "generate": (GenerateDocument, GenerateOverrides),
    "update": (UpdateDocument,),
    "engine": (EngineDocument,),
}
"""The blocks that a backend may add keys to, with the documents that already have keys there."""
TYPES: Mapping[str, tuple[type[Any], ...]] = {
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "str": (str,),
    "list[int]": (int,),
    "list[float]": (int, float),
    "list[str]": (str,),
    "dict": (dict,),
}
"""Types of a key and what a value, or each entry of a list, is in Python."""
HEAVY = ("torch", "ray", "vllm", "transformers", "megatron", "numpy")
_FACTS = ("type", "unit", "default", "doc")


@dataclass(frozen=True, slots=True)
class PackageKey:
    """One declared key. `type` is of TYPES; empty where `choices` are the words it takes."""

    name: str
    type: str
    choices: tuple[str, ...]
    unit: str
    default: Any
    doc: str
    package: str

    def takes(self, value: Any) -> bool:
        """Whether a value has the type. null is the default's way of saying nothing."""
        if value is None:
            return self.default is None
        if self.choices:
            return value in self.choices
        if self.type.startswith("list["):
            return isinstance(value, list | tuple) and all(self._is(item) for item in cast("list[Any]", value))
        return self._is(value)

    def _is(self, value: Any) -> bool:
        wanted = TYPES[self.type]
        return isinstance(value, wanted) and (bool in wanted or not isinstance(value, bool)) and _is_finite(value)


def _is_finite(value: Any) -> bool:
    """Whether a plan's JSON can hold every number of a value."""
    if isinstance(value, Mapping):
        return all(_is_finite(item) for item in cast("Mapping[Any, Any]", value).values())
    if isinstance(value, list | tuple):
        return all(_is_finite(item) for item in cast("list[Any]", value))
    return not isinstance(value, float) or isfinite(value)


Keys = Mapping[str, Mapping[str, PackageKey]]
"""{block: {key: what it is}}."""


class DeclarationError(Exception):
    """Declared keys that cannot be used. The text says which package and why, `rule` what is right."""

    def __init__(self, problem: str, rule: str = "") -> None:
        super().__init__(problem)
        self.rule = rule


def keys_of(kind: str, backend: str | None) -> Keys:
    """Declared keys of a role of `kind` on `backend`. Raises DeclarationError."""
    return {} if backend is None else _keys(kind, backend, tuple(sys.path))


def known_keys(kind: str, backend: str | None) -> Keys:
    """As `keys_of`; none where they cannot be used, which check_package_keys reports."""
    try:
        return keys_of(kind, backend)
    except DeclarationError:
        return {}


def declared_backends() -> tuple[tuple[str | None, str], ...]:
    """(kind or None for any, backend) of every package that declares keys."""
    return tuple(dict.fromkeys(_split(point.name) for point in _points(tuple(sys.path))))


def names_in(block: str) -> frozenset[str]:
    """Every key of `block` that any package declares."""
    keys = (known_keys(kind or "", backend) for kind, backend in declared_backends())
    return frozenset(name for some in keys for name in some.get(block, {}))


@cache
def _points(path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """Entry points of the packages on `path`, which is sys.path: another one may hold other packages."""
    return tuple(sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value)))


@cache
def _keys(kind: str, backend: str, path: tuple[str, ...]) -> Keys:
    made: dict[str, dict[str, PackageKey]] = {}
    for point in _points(path):
        if _split(point.name) not in ((None, backend), (kind, backend)):
            continue
        for block, key in _declared(point):
            earlier = made.setdefault(block, {}).get(key.name)
            if earlier is not None:
                raise DeclarationError(f"`{key.name}` of `{block}` is declared by {earlier.package} and {key.package}")
            made[block][key.name] = key
    return made


def _split(name: str) -> tuple[str | None, str]:
    kind, _, backend = name.rpartition(".")
    return (kind or None), backend


def _declared(point: EntryPoint) -> Iterator[tuple[str, PackageKey]]:
    package = point.dist.name if point.dist is not None else point.value
    for block, keys in _mapping(_loaded(point, package), package, "the entry point").items():
        if block not in BLOCKS:
            raise DeclarationError(f"{package} declares keys of `{block}`", f"blocks are {', '.join(BLOCKS)}")
        for name, facts in _mapping(keys, package, f"`{block}`").items():
            yield block, _key(block, name, _mapping(facts, package, f"`{block}.{name}`"), package)


def _loaded(point: EntryPoint, package: str) -> Any:
    before = set(sys.modules)
    try:
        value = point.load()
    except Exception as error:  # whatever a module of a package may raise when it is imported
        raise DeclarationError(f"{package}: `{point.value}`: {type(error).__name__}: {error}") from error
    heavy = [name for name in HEAVY if name in sys.modules and name not in before]
    if heavy:
        rule = "checking a flow imports nothing that runs: declare keys in a module of its own"
        raise DeclarationError(f"{package}: `{point.value}` imports {heavy[0]}", rule)
    return value


def _mapping(value: Any, package: str, what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in cast("Mapping[Any, Any]", value)):
        raise DeclarationError(f"{package}: {what} is no mapping of names")
    return cast("Mapping[str, Any]", value)


def _key(block: str, name: str, facts: Mapping[str, Any], package: str) -> PackageKey:
    where = f"{package}: `{block}.{name}`"
    unknown = sorted(set(facts) - set(_FACTS))
    if unknown or not isinstance(facts.get("doc"), str):
        problem = f"has `{unknown[0]}`" if unknown else "has no `doc`"
        raise DeclarationError(f"{where} {problem}", f"a key has {', '.join(_FACTS)}")
    if any(name in document.model_fields for document in BLOCKS[block]):
        raise DeclarationError(f"{where} is a key of the language already")
    kind = facts.get("type")
    choices: tuple[str, ...] = ()
    if isinstance(kind, list | tuple):
        choices, kind = tuple(str(word) for word in cast("Iterable[Any]", kind)), ""
    elif kind not in TYPES:
        rule = f"types are {', '.join(TYPES)}, or the list of the words that it takes"
        raise DeclarationError(f"{where} has the type `{kind}`", rule)
    default = facts.get("default")
    key = PackageKey(name, cast("str", kind), choices, str(facts.get("unit") or ""), default, facts["doc"], package)
    if not key.takes(default):
        raise DeclarationError(f"{where} has the default {default!r}, which is not of its type")
    return key
