"""bound_lag: whether each loss may train on samples as old as the flow lets them be."""

from __future__ import annotations

from flowrl.diag.diagnostic import Diagnostic, FlowError, diagnose
from flowrl.graph.graph import EdgeKind, Graph, Op
from flowrl.graph.lag import rollout_of, weights_edge
from flowrl.graph.params import UpdateParams
from flowrl.graph.signatures import LOSSES


def bound_lag(graph: Graph) -> Graph:
    """Refuse schedules that contradict themselves; the graph itself is unchanged.

    before: schedule max_lag=0 partial_rollout=true
    after:  FR0601: a response that goes on under new weights is a version old

    Requires: weights edges lowered. Ensures: where partial rollouts are on, every weights edge into a generator that is
    trained on has two tokens or more.
    """
    if not graph.schedule.partial_rollout:
        return graph
    span = graph.schedule.spans.get("partial_rollout")
    generators = {rollout.role for op in graph.ops if (rollout := rollout_of(graph, op)) is not None}
    edges = (e for e in graph.edges if e.kind is EdgeKind.WEIGHTS and e.target in generators)
    problems = [diagnose("FR0601", span or edge.span, edge=edge.id) for edge in edges if edge.tokens < 2]
    if problems:
        raise FlowError(problems)
    return graph


def warn_stale(graph: Graph) -> tuple[Diagnostic, ...]:
    """FR0604 for each loss that takes old samples as fresh ones: at lag > 0, not safe off policy, not corrected, and no
    ratio to the rollout's own log-probs."""
    return tuple(d for op in graph.ops if (d := _stale(graph, op)) is not None)


def _stale(graph: Graph, op: Op) -> Diagnostic | None:
    rollout = rollout_of(graph, op)
    if rollout is None or not isinstance(op.params, UpdateParams):
        return None
    edge = weights_edge(graph, op.role, rollout.role)
    lag = 0 if edge is None else edge.tokens - 1
    loss = LOSSES[op.params.loss]
    if edge is None or lag == 0 or loss.off_policy_safe or op.params.corrections:
        return None
    if loss.ratio and op.params.old_log_probs == "rollout":
        return None
    versions = "1 version" if lag == 1 else f"{lag} versions"
    span = graph.schedule.spans.get("max_lag") or edge.span
    return diagnose("FR0604", span, edge=edge.id, lag=versions, op=op.id, loss=op.params.loss, role=op.role)
