"""Weights: which ops compute the same values, and which roles hold the same weights.

Takes a graph whose inputs are bound. Two forwards are equal where model, machinery, parameters, inputs and rows are.
"""

from __future__ import annotations

import json
from collections.abc import Hashable

import msgspec

from flowrl.graph.graph import Edge, EdgeKind, Graph, Kind, Model, Op, Role
from flowrl.graph.params import ForwardParams
from flowrl.graph.rows import Rows


def forward_key(graph: Graph, rows: Rows, op: Op) -> Hashable | None:
    """Equal for two forwards that compute equal values; None for what is no forward of a model."""
    role = graph.role(op.role)
    if not isinstance(op.params, ForwardParams) or role.model is None:
        return None
    frozen = role.kind is Kind.SCORER and not is_synced(graph, role)
    return (
        role.kind,
        op.method,
        base_key(graph.model(role.model)) if frozen else role.name,
        role.backend,
        _text(role.engine),
        role.on_error,
        _text(op.params),
        tuple(sorted((i.slot, i.source or "", i.field) for i in op.inputs)),
        tuple(each.id for each in rows.governing(op)),
        (op.every_steps, op.start_step),
    )


def base_key(model: Model) -> Hashable:
    """Equal for two models that start from the same weights, adapters left out."""
    return (model.source, _text(model.inline), model.head, model.dtype)


def is_synced(graph: Graph, role: Role) -> bool:
    """Whether a weights edge brings the role versions that a trainer made."""
    return any(edge.kind is EdgeKind.WEIGHTS and edge.target == role.name for edge in graph.declared)


def carries_adapter(graph: Graph, edge: Edge) -> bool:
    """Whether a weights edge carries a LoRA adapter alone: its trainer and the generator that it enters have the same
    frozen base and keep the adapter beside it. To any other receiver the weights travel merged."""
    if edge.kind is not EdgeKind.WEIGHTS:
        return False
    source, target = (graph.role(end.split(".")[0]) for end in (edge.source, edge.target))
    models = [graph.model(role.model) for role in (source, target) if role.model is not None]
    return target.kind is Kind.GENERATOR and len(models) == 2 and all(model.lora is not None for model in models)


def sharing_trainer(graph: Graph, scorer: Role) -> Role | None:
    """The trainer whose frozen base a scorer's weights are: it trains adapters over the same weights with the same
    backend. Of several the first by name, since their bases are equal."""
    if scorer.kind is not Kind.SCORER or scorer.model is None or is_synced(graph, scorer):
        return None
    base = base_key(graph.model(scorer.model))
    able = (role for role in graph.roles if role.kind is Kind.TRAINER and role.trainable and role.model is not None)
    same = [role for role in able if role.backend == scorer.backend and _trains_adapters(graph, role, base)]
    return min(same, key=lambda role: role.name, default=None)


def _trains_adapters(graph: Graph, role: Role, base: Hashable) -> bool:
    model = graph.model(role.model or "")
    return model.lora is not None and base_key(model) == base


def _text(value: object) -> str:
    return json.dumps(msgspec.to_builtins(value), sort_keys=True)
