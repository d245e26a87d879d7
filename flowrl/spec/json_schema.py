"""The JSON Schema of the language, for editors. Made from the documents; their field docstrings become descriptions.

It is laxer than the loader where YAML text says less than the resolved flow: a preset may give what is required, and
any number may be a template.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from itertools import pairwise
from typing import Any, cast

from pydantic import TypeAdapter

from flowrl.spec.document import DECLARED, Document
from flowrl.spec.edges import ALL_ATTRIBUTES
from flowrl.spec.roles import DEFAULT_KINDS, KINDS, LABEL_PREFIX, LABELLED
from flowrl.spec.schema import FlowDocument

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_KIND_CLASSES = {kind: f"{kind.capitalize()}Role" for kind in KINDS}
_TEMPLATE = {"$ref": "#/$defs/Template"}

Schema = dict[str, Any]


def json_schema() -> Schema:
    """The schema of a flow's file, JSON Schema 2020-12."""
    made = TypeAdapter(FlowDocument).json_schema(by_alias=True)
    classes = {document.__name__: document for document in _subclasses(Document)}
    definitions: Schema = made.pop("$defs")
    definitions["FlowDocument"] = {key: value for key, value in made.items() if key != "$defs"}
    for name, definition in definitions.items():
        _describe(definition, classes[name])
    _use_written_form(definitions)
    for name, definition in definitions.items():
        definitions[name] = _with_templates(definition)
    definitions["Template"] = {"type": "string", "pattern": r"\{[{%]"}
    root = definitions.pop("FlowDocument")
    return {"$schema": DIALECT, "title": "FlowRL flow", **root, "required": ["flowrl", "name"], "$defs": definitions}


def _subclasses(document: type[Document]) -> list[type[Document]]:
    below = document.__subclasses__()
    return [*below, *(deeper for cls in below for deeper in _subclasses(cls))]


def _describe(definition: Schema, document: type[Document]) -> None:
    """Field docstrings as descriptions; titles that pydantic invents go."""
    docs = _field_docs(document)
    definition.pop("title", None)
    definition.pop("required", None)
    definition.get("properties", {}).pop(DECLARED, None)
    for name, schema in definition.get("properties", {}).items():
        schema.pop("title", None)
        if name in docs:
            schema["description"] = docs[name]


def _field_docs(document: type[Document]) -> dict[str, str]:
    docs: dict[str, str] = {}
    for cls in reversed(document.__mro__):
        if not (issubclass(cls, Document) and cls is not Document):
            continue
        body = cast("ast.ClassDef", ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]).body
        for field, doc in pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(doc, ast.Expr):
                docs[field.target.id] = str(cast("ast.Constant", doc.value).value)
    return docs


def _use_written_form(definitions: Schema) -> None:
    """Edges as text or in the long form, labelled calls by their keys, roles with their kind by name."""
    edge = definitions["EdgeDocument"]["properties"]
    long_form: Schema = {"type": "object", "additionalProperties": False, "required": ["edge"]}
    text = {"type": "string", "description": "`a.op, b.op -> c.op`, `a => b` or `a.op <-> env.step`"}
    long_form["properties"] = {"edge": text} | {name: edge[name] for name in ALL_ATTRIBUTES}
    definitions["EdgeDocument"] = {"anyOf": [text, long_form]}
    generator = definitions["GeneratorRole"]
    labelled = generator["properties"].pop(LABELLED)
    generator["patternProperties"] = {f"^{LABEL_PREFIX}": labelled["additionalProperties"]}
    kinds = {kind: {"$ref": f"#/$defs/{name}"} for kind, name in _KIND_CLASSES.items()}
    any_kind: Schema = {"oneOf": list(kinds.values()), "required": ["kind"]}
    named: Schema = {}
    for name, kind in DEFAULT_KINDS.items():
        named[name] = {"if": {"required": ["kind"]}, "then": any_kind, "else": kinds[kind]}
    roles: Schema = {"type": "object", "properties": named, "additionalProperties": any_kind, "description": "By name."}
    for owner in ("FlowDocument", "StageDocument"):
        definitions[owner]["properties"]["roles"] = roles


def _with_templates(schema: Any) -> Any:
    """The schema with `{{ … }}` allowed wherever a number, a boolean or one of several words is asked for."""
    if isinstance(schema, list):
        return [_with_templates(item) for item in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    fields = cast("Schema", schema)
    made = {key: value if key == "default" else _with_templates(value) for key, value in fields.items()}
    if made.get("type") in ("integer", "number", "boolean") or "enum" in made:
        kept = {key: made.pop(key) for key in ("description", "default") if key in made}
        return {**kept, "anyOf": [made, _TEMPLATE]}
    return made
