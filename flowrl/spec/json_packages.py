"""Keys that packages declare, put into the JSON Schema: in their block, and only for roles on their backend."""

from __future__ import annotations

from typing import Any

from flowrl.diag.diagnostic import FlowError, diagnose
from flowrl.spec.json_whole import KIND_CLASSES
from flowrl.spec.package_keys import BLOCKS, DeclarationError, PackageKey, declared_backends, keys_of
from flowrl.spec.roles import LABEL_PREFIX

Schema = dict[str, Any]

_TYPES: dict[str, Schema] = {
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "bool": {"type": "boolean"},
    "str": {"type": "string"},
    "list[int]": {"type": "array", "items": {"type": "integer"}},
    "list[float]": {"type": "array", "items": {"type": "number"}},
    "list[str]": {"type": "array", "items": {"type": "string"}},
    "dict": {"type": "object"},
}


def add_package_keys(definitions: dict[str, Schema], template: str) -> None:
    """Raises FlowError (FR0140) for a package whose keys cannot be used."""
    users: dict[tuple[str, str], set[tuple[str | None, str]]] = {}
    for kind, backend in declared_backends():
        try:
            keys = keys_of(kind or "", backend)
        except DeclarationError as error:
            raise FlowError(diagnose("FR0140", None, problem=str(error))) from None
        for block, declared in keys.items():
            for key in declared.values():
                _add(definitions, block, key, backend)
                users.setdefault((block, key.name), set()).add((kind, backend))
    for (block, name), backends in sorted(users.items()):
        for kind, owner in KIND_CLASSES.items():
            mine = sorted(backend for of, backend in backends if of in (None, kind))
            _forbid_elsewhere(definitions[owner], block, name, mine, template)


def _add(definitions: dict[str, Schema], block: str, key: PackageKey, backend: str) -> None:
    schema = {"enum": list(key.choices)} if key.choices else dict(_TYPES[key.type])
    made: Schema = schema if key.default is not None else {"anyOf": [schema, {"type": "null"}]}
    unit = f" Unit: {key.unit}." if key.unit else ""
    default = "none" if key.default is None else key.default
    words = f"{key.doc}{unit} Default {default}. From the package {key.package}, for backend {backend}."
    for document in BLOCKS[block]:
        properties = definitions[document.__name__]["properties"]
        earlier = properties.get(key.name)
        whole = {**made, "description": words} | ({} if key.default is None else {"default": key.default})
        if earlier is not None:
            whole = {"anyOf": [earlier, made], "description": f"{earlier['description']} {words}"}
        properties[key.name] = whole


def _forbid_elsewhere(role: Schema, block: str, name: str, backends: list[str], template: str) -> None:
    """Of a role that names another backend the key is not one. A backend may also come from a preset or a template."""
    named: Schema = {"required": ["backend"], "properties": {"backend": {"not": {"pattern": template}}}}
    if backends:
        named["properties"]["backend"]["not"] = {"anyOf": [{"enum": backends}, {"pattern": template}]}
    without: Schema = {"properties": {name: False}}
    then: Schema = {"properties": {block: without}} if block in role["properties"] else {}
    if block == "generate" and "patternProperties" in role:
        then["patternProperties"] = {f"^{LABEL_PREFIX}": without}
    if then:
        role.setdefault("allOf", []).append({"if": named, "then": then})
