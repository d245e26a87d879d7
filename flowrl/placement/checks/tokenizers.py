"""Whose tokens a model reads: a role with another tokenizer than the generator's may read text and write values of
samples only (LANGUAGE.md, "Binding" 6). Takes a graph and shapes; gives diagnostics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flowrl.diag.diagnostic import Diagnostic, diagnose
from flowrl.graph.graph import Graph, Model, Op
from flowrl.graph.params import GenerateParams
from flowrl.graph.types import Unit
from flowrl.machine.shape import ModelShape

PADDING = 1024
"""Rows that an embedding may have beyond its tokenizer: models of one family pad differently (Qwen2.5: 151,936 and
152,064). Vocabularies further apart are of two tokenizers; nearer ones pass, since only sizes are known here."""


def tokenizer_faults(graph: Graph, shapes: Mapping[str, ModelShape]) -> Iterator[Diagnostic]:
    """FR0353 for the first op of each role that reads tokens, or writes values of tokens or turns, of a generator with
    another tokenizer."""
    ops = {op.id: op for op in graph.ops}
    told: set[str] = set()
    for op in graph.ops:
        model = _model(graph, op)
        source = next((ops.get(i.source or "") for i in op.inputs if i.slot in _slots(op)), None)
        rollout = None if source is None else _model(graph, source)
        if model is None or rollout is None or source is None or not isinstance(source.params, GenerateParams):
            continue
        here, there = shapes.get(model.name), shapes.get(rollout.name)
        if here is None or there is None or not _apart(model, here, rollout, there):
            continue
        if op.role in told:
            continue
        told.add(op.role)
        words: dict[str, Any] = {"op": op.id, "model": model.name, "generate": source.id, "theirs": rollout.name}
        yield diagnose("FR0353", op.span, have=f"{here.vocab:,}", want=f"{there.vocab:,}", **words)


def _slots(op: Op) -> tuple[str, ...]:
    """The inputs that tie the op to the tokens of a generator: text does where it comes back by token or by turn."""
    fine = any(field.unit.rank < Unit.SAMPLE.rank for field in op.outputs)
    return ("tokens", "response") if fine and not isinstance(op.params, GenerateParams) else ("tokens",)


def _model(graph: Graph, op: Op) -> Model | None:
    name = graph.role(op.role).model
    return None if name is None else graph.model(name)


def _apart(one: Model, first: ModelShape, other: Model, second: ModelShape) -> bool:
    if one.inline is not None and other.inline is not None:
        return one.inline.get("tokenizer") != other.inline.get("tokenizer")
    return abs(first.vocab - second.vocab) > PADDING
