"""The JSON Schema of the language, for editors. Made from the documents; their field docstrings become descriptions.

It is laxer than the loader where YAML text says less than the resolved flow: below `use` or `include` nothing is
required (json_whole.py has what is, elsewhere), and any value may be a template.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, cast

from pydantic import TypeAdapter

from flowrl.spec.check import FLOW_NAME, NAME, SHARED
from flowrl.spec.document import DECLARED, Document
from flowrl.spec.edges import ALL_ATTRIBUTES, ATTRIBUTES
from flowrl.spec.json_packages import add_package_keys
from flowrl.spec.json_whole import KIND_CLASSES, WHOLE, Schema, by_kind, reference, starts_elsewhere, whole
from flowrl.spec.roles import DEFAULT_KINDS, KINDS, LABEL_PREFIX, LABELLED, GeneratorRole
from flowrl.spec.schema import FlowDocument, StageDocument

DIALECT = "https://json-schema.org/draft/2020-12/schema"
ROLE = "RoleDocument"
TEMPLATE = r"\{[{%]"
_AS_IT_IS = ("default", "propertyNames", "if", "not", "enum", "required")
_TEXT = {"type": "string", "pattern": TEMPLATE}
_WORDS = {
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping",
}
"""Types beside which a template may stand. An editor shows the words in place of the template's pattern."""
_NAMED = (("models", "roles", "data"), ("pools",), ("groups",))
_IN_STAGES_ONLY = tuple(key for key in FlowDocument.model_fields if key not in (*SHARED, "include"))


def json_schema() -> Schema:
    """The schema of a flow's file, JSON Schema 2020-12. Raises FlowError (FR0140) for keys of a package."""
    made = TypeAdapter(FlowDocument).json_schema(by_alias=True)
    classes = {document.__name__: document for document in _subclasses(Document)}
    definitions: Schema = made.pop("$defs")
    definitions["FlowDocument"] = {key: value for key, value in made.items() if key != "$defs"}
    needs = whole(definitions)
    for name, definition in definitions.items():
        _describe(definition, classes[name])
    _use_written_form(definitions)
    add_package_keys(definitions, TEMPLATE)
    _limit_names(definitions)
    for name in list(definitions):
        definitions[name] = _with_templates(definitions[name])
    definitions["EdgeDocument"] = _edge(definitions["EdgeDocument"]["properties"])
    definitions["StageDocument"] |= {"required": ["name"], **_unless_elsewhere("StageDocument")}
    root = definitions.pop("FlowDocument") | {"type": "object"}
    del root["pattern"], root["patternErrorMessage"]
    return {
        "$schema": DIALECT,
        "title": "FlowRL flow",
        **root,
        "required": ["flowrl", "name"],
        "allOf": [_unless_elsewhere("FlowDocument"), _beside_stages()],
        "$defs": definitions | needs,
    }


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
    """Labelled calls by their keys, and roles by `kind`, which six names may leave out."""
    generator = definitions["GeneratorRole"]
    labelled = generator["properties"].pop(LABELLED)
    calls = {**labelled["additionalProperties"], "description": _field_docs(GeneratorRole)["labelled"]}
    generator["patternProperties"] = {f"^{LABEL_PREFIX}{_core(NAME.pattern)}$": calls}
    definitions[ROLE] = {
        "type": "object",
        "description": "A role: the other keys are those of its kind. Over a preset's role the kind may be left out.",
        "properties": {"kind": {"enum": list(KINDS), "description": "What the role is."}},
        "if": {"required": ["kind"]},
        "then": by_kind(),
        "else": {"anyOf": [reference(name) for name in KIND_CLASSES.values()]},
    }
    named = {
        name: {"if": {"required": ["kind"]}, "then": reference(ROLE), "else": reference(KIND_CLASSES[kind])}
        for name, kind in DEFAULT_KINDS.items()
    }
    for owner in (FlowDocument.__name__, StageDocument.__name__):
        roles = {"type": "object", "description": "By name.", "properties": named}
        definitions[owner]["properties"]["roles"] = {**roles, "additionalProperties": reference(ROLE)}


def _limit_names(definitions: Schema) -> None:
    """Names of models, data sets, roles, pools and groups; of the flow and its stages."""
    for definition in list(definitions.values()):
        for key, value in definition.get("properties", {}).items():
            if any(key in keys for keys in _NAMED) and "additionalProperties" in value:
                value["propertyNames"] = {"pattern": f"{_core(NAME.pattern, '^')}$"}
    for owner, pattern in ((FlowDocument, FLOW_NAME), (StageDocument, NAME)):
        name = definitions[owner.__name__]["properties"]["name"]
        name["pattern"] = f"{_core(pattern.pattern, '^')}$|{TEMPLATE}"
        definitions[owner.__name__]["properties"]["roles"]["propertyNames"]["not"] = {"enum": ["data", "stages"]}


def _core(pattern: str, start: str = "") -> str:
    """A pattern of Python's `match` in the words of JSON Schema, without its end."""
    return start + pattern.removesuffix(r"\Z")


def _edge(attributes: Schema) -> Schema:
    """An edge as text or in the long form, with the attributes that its arrow takes."""
    end = r"[A-Za-z_][A-Za-z0-9_-]*"
    op = rf"{end}\.{end}(@{end})?"

    def line(one: str, arrow: str, other: str) -> str:
        return rf"^\s*{one}(\s*,\s*{one})*\s*{arrow}\s*{other}(\s*,\s*{other})*\s*$"

    patterns = {"->": line(op, "->", op), "=>": line(end, "=>", end), "<->": line(op, "<->", op)}
    words = "`a.op, b.op -> c.op`, `a => b` or `a.op <-> env.step`"
    text = {"type": "string", "description": words, "pattern": "|".join((*patterns.values(), TEMPLATE))}
    long_form: Schema = {
        "type": "object",
        "description": "An edge with attributes. Written again, an edge adds attributes.",
        "additionalProperties": False,
        "required": ["edge"],
        "properties": {"edge": text} | {name: attributes[name] for name in ALL_ATTRIBUTES},
        "not": {"required": ["every_steps", "every_updates"]},
        "allOf": [_attributes(patterns[arrow], ("edge", *names)) for arrow, names in ATTRIBUTES.items()],
    }
    return {"anyOf": [text, long_form]}


def _attributes(pattern: str, names: Iterable[str]) -> Schema:
    is_arrow = {"properties": {"edge": {"pattern": pattern}}, "required": ["edge"]}
    return {"if": is_arrow, "then": {"propertyNames": {"enum": list(names)}}}


def _unless_elsewhere(owner: str) -> Schema:
    """What must be given, where no preset and no other file gives it."""
    return {"if": starts_elsewhere(), "then": True, "else": reference(f"{WHOLE}{owner}")}


def _beside_stages() -> Schema:
    """A flow has `step`, or stages and then nothing of its own that stages have."""
    staged = {"required": ["stages"], "properties": {"stages": {"type": "array", "minItems": 1}}}
    alone = {"if": starts_elsewhere(), "then": True, "else": {"required": ["step"]}}
    return {"if": staged, "then": {"properties": dict.fromkeys(_IN_STAGES_ONLY, False)}, "else": alone}


def _with_templates(schema: Any) -> Any:
    """The schema with `{{ … }}` allowed wherever a value has a type of its own: a template is a text."""
    if isinstance(schema, list):
        return [_with_templates(item) for item in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    fields = cast("Schema", schema)
    made: Schema = {}
    for key, value in fields.items():
        if key in ("properties", "patternProperties"):
            made[key] = {name: _with_templates(item) for name, item in cast("Schema", value).items()}
        else:
            # A template is of every form, so forms of a union no longer exclude each other.
            made["anyOf" if key == "oneOf" else key] = value if key in _AS_IT_IS else _with_templates(value)
    kind = made.get("type")
    if kind in _WORDS:
        words = f"Expected {_WORDS[kind]}, or a template in quotes."
        made |= {"type": [kind, "string"], "pattern": TEMPLATE, "patternErrorMessage": words}
    elif "enum" in made:
        kept = {key: made.pop(key) for key in ("description", "default") if key in made}
        return {**kept, "anyOf": [made, _TEXT]}
    return made
