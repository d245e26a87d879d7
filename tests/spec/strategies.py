"""Flows drawn at random from the schema itself: every document, with any of its keys, and awkward values in them."""

from __future__ import annotations

import json
import re
from typing import Any, Literal, get_args, get_origin

from hypothesis import strategies as st
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from flowrl.spec.document import Document
from flowrl.spec.edges import ATTRIBUTES
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
from flowrl.spec.schema import EdgeDocument, FlowDocument, GateDocument, RunDocument, StepDocument
from flowrl.spec.types import options

NAMES = st.sampled_from(["policy", "value", "train", "val", "a", "b-2", "_c"])
LABELS = st.sampled_from(["val", "greedy"])
AWKWARD = (
    "1e-6", "yes", "on", "null", "~", "0x1f", "0o7", "007", "1_000", ".inf", ".nan", "1:30", "2026-11-29", "<<", "- a",
    "a: b", "a #b", "#", "'", '"', "\\", " a ", "", "*a", "&a", "!a", "%", "@", "`", "a\nb", "a\n", "\n", "a\n\n b\n",
    "\ta", "a\r\nb",
    "é名", "😀", "\x85", "\u2028", "\ufeff", "\x00", "\x7f", "}}", "{", "?", "=", "[", ",", "---", "...",
)  # fmt: skip
TEMPLATES = ("{{ a }}", "{% if %}", "{#", "a {{ b")
KEYS = st.sampled_from(["a", "a.b", "é", "1", "yes", "on", "null", "a b", "-", "1e3", "a:b", "#", "generate@x", "edge"])
KINDS: dict[str, tuple[type[Document], tuple[str, ...]]] = {
    "trainer": (TrainerRole, ("log_probs", "values", "update")),
    "generator": (GeneratorRole, ("generate",)),
    "scorer": (ScorerRole, ("log_probs", "values")),
    "reward": (RewardRole, ("score", "compare")),
    "estimator": (EstimatorRole, ("estimate",)),
    "filter": (FilterRole, ("select",)),
    "env": (EnvRole, ("reset",)),
    "function": (FunctionRole, ("call",)),
}
"""The document of each kind and its ops, `env.step` left out: it is only in interactions."""
ROLES = tuple(cls for cls, _ in KINDS.values())


def anything(texts: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    """What may stand in `args`, `extra` and `vars`."""
    scalars = st.none() | st.booleans() | st.integers(-(2**62), 2**62) | texts
    numbers = st.sampled_from([1.0, -0.0, 1e-6, 1e22, 1.5e300, 5e-324, 0.1, 100000000000000000.0])
    return st.recursive(
        scalars | numbers,
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=2),
        max_leaves=4,
    )


TEXTS = st.sampled_from(AWKWARD) | st.text(st.characters(codec="utf-8", exclude_characters="{"), max_size=4)
ANY_TEXTS = TEXTS | st.sampled_from(TEMPLATES)
"""Also with the marks of templates: from Python they are texts like others."""
WORDS = st.sampled_from(["x", "rewards.py:score", "Qwen/Qwen2.5-7B"]) | TEXTS
ANYTHING = anything(TEXTS)


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
        str: WORDS,
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
        if not field.is_required() and name not in ("labelled", "declared", "kind", "remove")
    }
    for few in {"updates", "epochs"} & set(optional):  # of five trainers less than FR0034 refuses
        optional[few] = st.integers(1, 14)
    drawn = st.fixed_dictionaries(required, optional=optional)
    if cls in ROLES:
        kind = get_args(cls.model_fields["kind"].annotation)[0]
        drawn = drawn.map(lambda keys: {**keys, "kind": kind})
    if cls is GeneratorRole:
        labels = st.dictionaries(LABELS.map(lambda name: f"generate@{name}"), documents(GenerateOverrides), max_size=1)
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


@st.composite
def edges(draw: st.DrawFn, roles: dict[str, dict[str, Any]], data: list[str]) -> list[Any]:
    """Edges of all arrows between ends that are there, some in the long form; no pair of ends twice."""
    by_kind = {kind: [name for name, role in roles.items() if role["kind"] == kind] for kind in KINDS}
    ops = [f"{name}.{op}" for name, role in roles.items() for op in KINDS[role["kind"]][1]]
    calls = [call for op in ops for call in (op, f"{op}@val")]
    ends: dict[str, tuple[list[str], list[str]]] = {
        "->": ([*(f"data.{name}" for name in data), *calls], calls),
        "=>": (by_kind["trainer"], by_kind["generator"]),
        "<->": ([f"{name}.generate" for name in by_kind["generator"]], [f"{name}.step" for name in by_kind["env"]]),
    }
    made: list[Any] = []
    seen: set[tuple[str, str]] = set()
    for arrow in draw(st.lists(st.sampled_from([arrow for arrow in ends if all(ends[arrow])] or ["->"]), max_size=4)):
        if not all(ends[arrow]):
            continue
        sources, targets = (
            draw(st.lists(st.sampled_from(some), min_size=1, max_size=2, unique=True)) for some in ends[arrow]
        )
        targets = targets[:1] if arrow == "<->" else targets
        pairs = {(f"{source}{arrow}", target) for source in sources for target in targets}
        if pairs & seen:
            continue
        seen |= pairs
        attributes = draw(_attributes(arrow))
        text = f"{', '.join(sources)} {arrow} {', '.join(targets)}"
        made.append({"edge": text, **attributes} if attributes or draw(st.booleans()) else text)
    return made


def _attributes(arrow: str) -> st.SearchStrategy[dict[str, Any]]:
    names = [name for name in ATTRIBUTES[arrow] if name not in ("remove", "every_updates")]
    drawn = st.fixed_dictionaries({}, optional={name: _field(EdgeDocument.model_fields[name]) for name in names})
    ends = {"sources": ["a"], "arrow": arrow, "targets": ["b"]}
    return st.one_of(st.just({}), drawn).filter(lambda keys: _is_accepted(EdgeDocument, ends | keys))


SHARED = ("models", "data", "cluster", "run")
OWN = ("schedule", "placement", "assume")


@st.composite
def stages(draw: st.DrawFn, data: list[str]) -> dict[str, Any]:
    """What a stage has for itself, and a plain flow beside what stages share."""
    sections = {name: _field(FlowDocument.model_fields[name]) for name in OWN}
    made = draw(st.fixed_dictionaries({"step": documents(StepDocument)}, optional=sections))
    kinds = draw(st.lists(st.sampled_from(list(KINDS)), max_size=5))
    roles = {f"r{index}": draw(documents(KINDS[kind][0])) for index, kind in enumerate(kinds)}
    for role in roles.values():
        _drop_idle_args(role)
    return {"roles": roles, "edges": draw(edges(roles, data)), **made}


def _drop_idle_args(entry: dict[str, Any]) -> None:
    if not any(":" in str(entry.get(key)) for key in ("source", "function", "env")):
        entry.pop("args", None)


@st.composite
def flows(draw: st.DrawFn, with_stages: bool = True) -> dict[str, Any]:
    """A whole flow as a file holds it; half of them with stages."""
    shared = draw(
        st.fixed_dictionaries(
            {}, optional={name: _field(FlowDocument.model_fields[name]) for name in SHARED} | {"vars": _variables()}
        )
    )
    for entry in shared.get("data", {}).values():
        _drop_idle_args(entry)
    data = list(shared.get("data", {}))
    head = {"flowrl": 1, "name": "drawn", **shared}
    if not (with_stages and draw(st.booleans())):
        return {**head, **draw(stages(data))}
    extra = {"run": documents(RunDocument), "gate": documents(GateDocument), "vars": _variables()}
    several = [
        {"name": f"s{index}", **draw(st.fixed_dictionaries({}, optional=extra)), **draw(stages(data))}
        for index in range(draw(st.integers(1, 2)))
    ]
    return {**head, "stages": several}


def _variables() -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from(["a", "b"]), ANYTHING, max_size=2)


_NOT_RAW = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


def as_text(flow: dict[str, Any]) -> str:
    """The flow as JSON, which is YAML once what YAML does not print is escaped."""
    text = json.dumps(flow, ensure_ascii=False)
    return _NOT_RAW.sub(lambda match: f"\\u{ord(match.group()):04x}", text)


def flow_texts(with_stages: bool = True) -> st.SearchStrategy[str]:
    return flows(with_stages).map(as_text)
