"""A flow as a file holds it (mappings and lists) said again through the builder's calls, as a program would say it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowrl.spec import FlowBuilder
from flowrl.spec.builder import Sections, StageBuilder
from flowrl.spec.handles import DataSet, EnvHandle, GeneratorHandle, ModelHandle, RoleHandle
from flowrl.spec.roles import DEFAULT_KINDS

Shared = Mapping[str, Any]


def say(document: Mapping[str, Any], folder: str = ".") -> FlowBuilder:
    """The builder of a flow without presets."""
    flow = FlowBuilder(document["name"], folder=folder)
    data = fill(flow, document, {})
    for stage in document.get("stages", ()):
        made = flow.stage(stage["name"])
        fill(made, stage, data)
        if "gate" in stage:
            made.gate(**stage["gate"])
    for code in document.get("allow", ()):
        flow.allow(code)
    return flow


def fill(sections: Sections, document: Mapping[str, Any], shared: Mapping[str, DataSet]) -> Mapping[str, DataSet]:
    models = {name: sections.model(name, **keys) for name, keys in document.get("models", {}).items()}
    data = {name: sections.data(name, **keys) for name, keys in document.get("data", {}).items()}
    roles = {name: role(sections, name, dict(keys), models) for name, keys in document.get("roles", {}).items()}
    for edge in document.get("edges", ()):
        long = dict(edge) if isinstance(edge, dict) else {"edge": edge}
        connect(sections, long.pop("edge"), long, roles, {**shared, **data})
    for key in ("step", "schedule", "run", "placement", "cluster", "vars"):
        if key in document:
            value, method = document[key], getattr(sections, key)
            method(value) if isinstance(value, str) else method(**value)
    for op, keys in document.get("assume", {}).items():
        sections.assume(op, **keys)
    return data


def role(sections: Sections, name: str, keys: dict[str, Any], models: Mapping[str, ModelHandle]) -> RoleHandle:
    kind = keys.pop("kind", DEFAULT_KINDS.get(name))
    if keys.get("model") in models:
        keys["model"] = models[keys["model"]]
    return getattr(sections, kind)(name, **keys)


def connect(
    sections: Sections, text: str, rest: Mapping[str, Any], roles: Mapping[str, RoleHandle], data: Mapping[str, Any]
) -> None:
    """An edge by the method of its role; several targets are several calls."""
    arrow = next(arrow for arrow in ("<->", "->", "=>") if arrow in text)
    sources, targets = ([end.strip() for end in part.split(",")] for part in text.split(arrow))
    if arrow == "=>":
        for source in sources:
            for target in targets:
                sections.weights(roles[source], roles[target], **rest)
        return
    if arrow == "<->":
        env, *_ = targets[0].split(".")
        players = [roles[source.partition(".")[0]] for source in sources]
        interact(roles[env], players, rest)
        return
    batches = [data[s.removeprefix("data.")] if s.startswith("data.") else sections.op(s) for s in sources]
    if isinstance(sections, StageBuilder):
        assert all(batch.owner in (sections, sections._parent) for batch in batches)
    for target in targets:
        name, _, op = target.partition(".")
        method, _, label = op.partition("@")
        if not label and {batch.label for batch in batches} == {"val"}:
            sections.edge(f"{', '.join(sources)} -> {target}", **rest)  # a method would follow their label
        else:
            getattr(roles[name], method)(*batches, label=label or None, **rest)


def interact(env: RoleHandle, players: list[RoleHandle], rest: Mapping[str, Any]) -> None:
    assert isinstance(env, EnvHandle)
    generators = [player for player in players if isinstance(player, GeneratorHandle)]
    if len(generators) == 1:
        generators[0].interact(env, **rest)
    else:
        env.interact(*generators, **rest)
