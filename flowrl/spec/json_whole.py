"""The part of the JSON Schema that holds only where no preset and no included file stands below: what must be given.

Takes the definitions that pydantic makes, gives for each document that needs anything a definition `Whole…` with
nothing but the needs: required keys, exactly one of several, a cluster in one form.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from flowrl.spec.check import INHERITED
from flowrl.spec.roles import DEFAULT_KINDS, FLAVOURS, KINDS

Schema = dict[str, Any]

WHOLE = "Whole"
KIND_CLASSES: Mapping[str, str] = {kind: f"{kind.capitalize()}Role" for kind in KINDS}
_REF = "#/$defs/"
_NULL: Schema = {"type": "null"}


def whole(definitions: Mapping[str, Schema]) -> dict[str, Schema]:
    """`Whole…` definitions by name. Must see `required`, so before it is taken off."""
    found: dict[str, Schema] = {"EdgeDocument": {}}  # an edge is written in a form of its own
    for name in definitions:
        _document(name, definitions, found)
    made = {f"{WHOLE}{name}": needs for name, needs in found.items() if needs}
    roles: Schema = {
        "properties": {
            name: {
                "if": {"required": ["kind"]},
                "then": by_kind(WHOLE),
                "else": reference(f"{WHOLE}{KIND_CLASSES[kind]}"),
            }
            for name, kind in DEFAULT_KINDS.items()
        },
        "additionalProperties": {"required": ["kind"], **by_kind(WHOLE)},
    }
    for name in ("FlowDocument", "StageDocument"):
        made[f"{WHOLE}{name}"]["properties"]["roles"] = roles
    del made[f"{WHOLE}FlowDocument"]["properties"]["stages"]  # each has or has not something below it
    stage = made[f"{WHOLE}StageDocument"]["properties"]
    made[f"{WHOLE}StageDocument"]["properties"] = {k: v for k, v in stage.items() if k not in INHERITED}
    return made


def reference(name: str) -> Schema:
    return {"$ref": f"{_REF}{name}"}


def by_kind(prefix: str = "") -> Schema:
    """One definition for each kind, chosen by `kind`."""
    return {
        "allOf": [
            {
                "if": {"required": ["kind"], "properties": {"kind": {"const": kind}}},
                "then": reference(f"{prefix}{name}"),
            }
            for kind, name in KIND_CLASSES.items()
        ]
    }


def starts_elsewhere() -> Schema:
    """Whether a flow or stage has something below it."""
    return {"anyOf": [{"required": ["use"]}, {"required": ["include"], "properties": {"include": {"minItems": 1}}}]}


def _document(name: str, definitions: Mapping[str, Schema], found: dict[str, Schema]) -> Schema:
    """The needs of one document, empty if it has none."""
    if name in found:
        return found[name]
    found[name] = {}
    definition = definitions[name]
    below = {key: _needs(value, definitions, found) for key, value in definition.get("properties", {}).items()}
    required = [key for key in definition.get("required", []) if key != "kind"]
    parts: Schema = {
        "required": required,
        "properties": {key: value for key, value in below.items() if value},
    }
    extra = {"if": {"type": "object"}, "then": _EXTRA[name]} if name in _EXTRA else {}
    made = {key: value for key, value in parts.items() if value} | extra
    found[name] = made
    return made


def _needs(value: Any, definitions: Mapping[str, Schema], found: dict[str, Schema]) -> Schema:
    """The needs of a value of a key, empty if it has none. Those of unions hold by form: a list has no keys."""
    if not isinstance(value, dict):
        return {}
    schema = cast("Schema", value)
    if "$ref" in schema:
        name = str(schema["$ref"]).removeprefix(_REF)
        return reference(f"{WHOLE}{name}") if _document(name, definitions, found) else {}
    if schema.get("discriminator") is not None:
        return {}  # roles, which are put in by name
    for union in ("anyOf", "oneOf"):
        if union in schema:
            parts = [part for one in schema[union] if (part := _needs(one, definitions, found))]
            return {"allOf": parts} if parts else {}
    for key in ("items", "additionalProperties"):
        inner = _needs(schema.get(key), definitions, found)
        if inner:
            return {key: inner}
    return {}


def _given(*keys: str) -> Schema:
    return {"required": list(keys), "properties": {key: {"not": _NULL} for key in keys}}


def _absent(keys: Iterable[str]) -> Schema:
    return {"properties": dict.fromkeys(keys, _NULL)}


def _exactly_one(*keys: str) -> Schema:
    """One of the keys, and no other of them but as null."""
    return {"oneOf": [{"allOf": [_given(key), _absent(k for k in keys if k != key)]} for key in keys]}


def _one_flavour() -> Schema:
    """As exactly one, but a judge may have a model."""
    options = [
        {"allOf": [_given(key), _absent(k for k in FLAVOURS if k != key and (key, k) != ("judge", "model"))]}
        for key in FLAVOURS
    ]
    return {"oneOf": options}


_EXTRA: Mapping[str, Schema] = {
    "DataDocument": _exactly_one("source", "seeds", "mix"),
    "GateDocument": _exactly_one("at_least", "at_most"),
    "RewardRole": _one_flavour(),
    "ClusterDocument": {
        "oneOf": [
            {"allOf": [_given("gpu", "gpus_per_node"), {"properties": {"groups": {"maxProperties": 0}}}]},
            {
                "allOf": [
                    {"required": ["groups"], "properties": {"groups": {"minProperties": 1}}},
                    _absent(("gpu", "gpus_per_node")),
                ]
            },
        ]
    },
}
