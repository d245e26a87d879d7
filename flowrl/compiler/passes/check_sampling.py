"""check_sampling: whether the log-probs of a loss are those of the distribution that its samples came from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flowrl.diag.diagnostic import Diagnostic, diagnose
from flowrl.graph.graph import Graph, Op
from flowrl.graph.lag import on_policy, rollout_of, weights_edge
from flowrl.graph.params import ForwardParams, GenerateParams, UpdateParams
from flowrl.graph.signatures import LOSSES

OLD, ROLLOUT = "old_log_probs", "rollout_log_probs"
LIBRARY = {"fsdp": "transformers", "hf": "transformers"}
"""Backends that run the same forward pass, by the library whose it is; another backend has its own."""


def check_sampling(graph: Graph) -> Graph:
    """The graph as it is; `warn_sampling` looks at its samples and ratios.

    before: generate temperature=0 -> update loss=ppo
    after:  the same, FR0613: all samples of a prompt are equal

    Requires: every input bound. Ensures: nothing.
    """
    return graph


def warn_sampling(graph: Graph) -> tuple[Diagnostic, ...]:
    """FR0610 (two micro-batches for one ratio), FR0611 (ratios to another engine, uncorrected), FR0612 (samples of a
    cut-off distribution), FR0613 (greedy samples)."""
    return tuple(d for op in graph.ops for update in _policy(graph, op) for d in _mismatches(graph, *update))


def _policy(graph: Graph, op: Op) -> Iterator[tuple[Op, UpdateParams, Op, GenerateParams]]:
    """`op` with its parameters and rollout, if it trains a policy on samples."""
    rollout = rollout_of(graph, op)
    if rollout is None or not isinstance(rollout.params, GenerateParams) or not isinstance(op.params, UpdateParams):
        return
    if LOSSES[op.params.loss].ratio:
        yield op, op.params, rollout, rollout.params


def _mismatches(
    graph: Graph, op: Op, update: UpdateParams, rollout: Op, generate: GenerateParams
) -> Iterator[Diagnostic]:
    yield from _micro_batches(graph, op, update)
    yield from _engines(graph, op, update, rollout)
    if generate.temperature == 0:
        span = rollout.spans.get("temperature") or rollout.span
        yield diagnose("FR0613", span, rollout=rollout.id, op=op.id, loss=update.loss, role=rollout.role)
        return
    cut = [f"top_p: {generate.top_p:g}"] if generate.top_p < 1 else []
    cut += [f"top_k: {generate.top_k}"] if generate.top_k > 0 else []
    if cut:
        span = rollout.spans.get(cut[0].partition(":")[0]) or rollout.span
        yield diagnose("FR0612", span, rollout=rollout.id, op=op.id, cut=" and ".join(f"`{each}`" for each in cut))


def _micro_batches(graph: Graph, op: Op, update: UpdateParams) -> Iterator[Diagnostic]:
    """On policy the ratio of the only update is 1 but for rounding, and rounding depends on the micro-batch."""
    source = next((i.source for i in op.inputs if i.slot == OLD), None)
    made = next((o for o in graph.ops if o.id == source), None)
    if made is None or not isinstance(made.params, ForwardParams) or not on_policy(graph, op):
        return
    if made.params.micro_batch_tokens != update.micro_batch_tokens:
        span = op.spans.get("old_log_probs") or op.span
        facts: dict[str, Any] = {"here": update.micro_batch_tokens, "there": made.params.micro_batch_tokens}
        yield diagnose("FR0610", span, op=op.id, maker=made.id, role=op.role, **facts)


def _engines(graph: Graph, op: Op, update: UpdateParams, rollout: Op) -> Iterator[Diagnostic]:
    """Ratios to the rollout's own log-probs, of samples that may be old, from another engine than the trainer's."""
    edge = weights_edge(graph, op.role, rollout.role)
    reads_rollout = any(i.slot == OLD and i.field == ROLLOUT for i in op.inputs)
    if edge is None or edge.tokens < 2 or not reads_rollout or update.corrections:
        return
    theirs, ours = graph.role(rollout.role).backend or "", graph.role(op.role).backend or ""
    if LIBRARY.get(theirs, theirs) != LIBRARY.get(ours, ours):
        span = op.spans.get("old_log_probs") or op.span
        yield diagnose("FR0611", span, op=op.id, rollout=rollout.id, role=op.role, theirs=theirs, ours=ours)
