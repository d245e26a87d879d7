"""Flows drawn at random from the schema itself: every document, with any of its keys."""

from __future__ import annotations

import json
from typing import Any, Literal, get_args, get_origin

from hypothesis import strategies as st
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from flowrl.spec.document import Document
from flowrl.spec.roles import (
    EnvRole,
    EstimatorRole,
    FilterRole,
    FunctionRole,
    GenerateOverrides,
    GeneratorRole,
    RewardRole,
    ScorerRole,
    TrainerRole,
)
from flowrl.spec.schema import FlowDocument, StepDocument
from flowrl.spec.types import options

NAMES = st.sampled_from(["policy", "value", "train", "val", "a", "b-2", "_c"])
TEXTS = st.sampled_from(["x", "rewards.py:score", "Qwen/Qwen2.5-7B", "1e-6", "on", "a b", "é", "- x", "a: b", "~"])
EDGES = st.sampled_from(["a.x -> b.y", "a => b", "a.x, c.x -> b.y, d.y", "data.train -> b.y@val", "a.x <-> e.step"])
ROLES: tuple[type[Document], ...] = (
    TrainerRole, GeneratorRole, ScorerRole, RewardRole, EstimatorRole, FilterRole, EnvRole, FunctionRole
)  # fmt: skip
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=2),
    max_leaves=4,
)


def values(annotation: Any) -> st.SearchStrategy[Any]:
    """Values of the type; their bounds are left to the check of the whole document."""
    return st.one_of([_value(member) for member in options(annotation)])


def _value(annotation: Any) -> st.SearchStrategy[Any]:
    origin = get_origin(annotation)
    if isinstance(annotation, type) and issubclass(annotation, Document):
        return documents(annotation)
    if origin is Literal:
        return st.sampled_from(get_args(annotation))
    if origin is dict:
        return st.dictionaries(NAMES, values(get_args(annotation)[1]), max_size=2)
    if origin is tuple:
        return st.lists(values(get_args(annotation)[0]), max_size=2)
    simple: dict[Any, st.SearchStrategy[Any]] = {
        str: TEXTS,
        int: st.integers(1, 64),
        float: st.sampled_from([1.0, 0.5, 1e-6, 0.95, 0.0]),
        bool: st.booleans(),
    }
    return simple.get(annotation, ANYTHING)


def documents(cls: type[Document]) -> st.SearchStrategy[dict[str, Any]]:
    """Mappings that the document accepts."""
    required = {name: _field(field) for name, field in cls.model_fields.items() if field.is_required()}
    optional = {
        name: _field(field)
        for name, field in cls.model_fields.items()
        if not field.is_required() and name not in ("labelled", "kind", "remove")
    }
    drawn = st.fixed_dictionaries(required, optional=optional)
    if cls in ROLES:
        kind = get_args(cls.model_fields["kind"].annotation)[0]
        drawn = drawn.map(lambda keys: {**keys, "kind": kind})
    if cls is GeneratorRole:
        labels = st.dictionaries(NAMES.map(lambda name: f"generate@{name}"), documents(GenerateOverrides), max_size=1)
        drawn = st.tuples(drawn, labels).map(lambda parts: {**parts[0], **parts[1]})
    return drawn.map(lambda keys: _only_one(cls, keys)).filter(lambda keys: _is_accepted(cls, keys))


def _field(field: FieldInfo) -> st.SearchStrategy[Any]:
    return values(field.annotation)


EXCLUSIVE = (("source", "seeds", "mix"), ("at_least", "at_most"), ("function", "model", "sandbox", "router", "combine"))


def _only_one(cls: type[Document], keys: dict[str, Any]) -> dict[str, Any]:
    """Of keys that exclude each other, the first that was drawn."""
    for group in EXCLUSIVE:
        if set(group) <= set(cls.model_fields) and cls.__name__ in ("DataDocument", "GateDocument", "RewardRole"):
            given = [key for key in group if keys.get(key) is not None]
            keys = {key: value for key, value in keys.items() if key not in given[1:]}
    return keys


def _is_accepted(cls: type[Document], keys: dict[str, Any]) -> bool:
    try:
        cls.model_validate(keys)
    except ValidationError:
        return False
    return True


SECTIONS = ("models", "data", "cluster", "schedule", "placement", "run", "assume")


@st.composite
def flow_texts(draw: st.DrawFn) -> str:
    """A whole flow as JSON, which is YAML."""
    sections = {name: _field(FlowDocument.model_fields[name]) for name in SECTIONS}
    flow = draw(st.fixed_dictionaries({"step": documents(StepDocument)}, optional=sections))
    roles = {f"r{index}": draw(documents(cls)) for index, cls in enumerate(ROLES) if draw(st.booleans())}
    edges = draw(st.lists(EDGES, unique=True, max_size=3))
    for entry in [*roles.values(), *flow.get("data", {}).values()]:
        if not any(":" in str(entry.get(key)) for key in ("source", "function", "env")):
            entry.pop("args", None)
    return json.dumps({"flowrl": 1, "name": "drawn", "roles": roles, "edges": edges, **flow}, ensure_ascii=False)
