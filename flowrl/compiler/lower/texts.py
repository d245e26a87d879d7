"""Ops that read tokens where nothing generates: a given response is text, which they make into tokens themselves.

Takes ops and declared edges, gives ops. So offline pairs train a policy (dpo) with the log-probs of a reference, and a
given response its critic, with no other word in the flow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from flowrl.graph.algorithms import backward, reachable
from flowrl.graph.graph import Edge, EdgeKind, Input, Op
from flowrl.graph.params import DataParams
from flowrl.graph.signatures import slot

FORWARD = ("log_probs", "values", "update")
"""Ops that run a model over whole responses."""
_TOKENS = ("tokens", "loss_mask")


def with_texts(ops: Sequence[Op], declared: Iterable[Edge]) -> tuple[Op, ...]:
    """An op over responses below a data set that gives them, with no generator above it, reads prompt and response in
    place of tokens and loss_mask."""
    known = {op.id: op for op in ops}
    pairs = [(edge.source, edge.target) for edge in declared if edge.kind is EdgeKind.DATA]
    return tuple(_on_text(op, known, pairs) for op in ops)


def _on_text(op: Op, known: Mapping[str, Op], pairs: Sequence[tuple[str, str]]) -> Op:
    if op.method not in FORWARD or not any(input.slot == "tokens" for input in op.inputs):
        return op
    above = [known[id] for id in reachable([op.id], backward(pairs)) if id in known and id != op.id]
    given = any(isinstance(each.params, DataParams) and _writes(each, "response") for each in above)
    if not given or any(_writes(each, "tokens") for each in above):
        return op
    return replace(op, inputs=(slot("prompt"), slot("response"), *(i for i in op.inputs if not _is_tokens(i))))


def _is_tokens(input: Input) -> bool:
    return input.slot in _TOKENS and input.chosen is None


def _writes(op: Op, field: str) -> bool:
    return any(output.name == field for output in op.outputs)
