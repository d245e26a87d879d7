"""bound_lag: whether each loss may train on samples as old as the flow lets them be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from flowrl.diag.diagnostic import Diagnostic, FlowError, Help, Respelt, diagnose
from flowrl.graph.graph import Edge, EdgeKind, Graph, Op, Schedule
from flowrl.graph.lag import PathLag, path_lags, rollout_of, weights_edge
from flowrl.graph.params import UpdateParams
from flowrl.graph.rates import versions_per_step
from flowrl.graph.rows import rows_of
from flowrl.graph.signatures import LOSSES


def bound_lag(graph: Graph) -> Graph:
    """Refuse schedules that contradict themselves; the graph itself is unchanged.

    before: schedule max_lag=0 partial_rollout=true
    after:  FR0601: a response that goes on under new weights is a version old

    Requires: weights edges lowered. Ensures: no path of weights into an update has a lag above its edge's `max_lag`
    (graph/lag.py); where partial rollouts are on, every weights edge into a generator that is trained on has a lag of 1
    or more.
    """
    if not graph.schedule.partial_rollout:
        return graph
    span = graph.schedule.spans.get("partial_rollout")
    generators = {rollout.role for op in graph.ops if (rollout := rollout_of(graph, op)) is not None}
    edges = (e for e in graph.edges if e.kind is EdgeKind.WEIGHTS and e.target in generators)
    helps = _lag_or_whole(graph.schedule)
    bad = [edge for edge in edges if edge.tokens <= versions_per_step(graph, edge)]
    problems = [diagnose("FR0601", span or edge.span, helps=helps, edge=edge.id) for edge in bad]
    if problems:
        raise FlowError(problems)
    return graph


def _lag_or_whole(schedule: Schedule) -> list[Help]:
    """The two ways out of FR0601."""
    lag, partial = schedule.spans.get("max_lag"), schedule.spans.get("partial_rollout")
    words = "let samples be a version old or more"
    more = Help(text=f"{words}: `schedule: {{max_lag: 1}}`")
    if schedule.max_lag > 0:
        more = Help(text=f"{words}: the edge has a `max_lag` of its own, and 0 is too little")
    elif lag is not None:
        more = Respelt(text=words, span=lag, old="0", new="1")
    whole = "or end each response under the weights it began with: `partial_rollout: false`"
    return [more, Respelt(text=whole, span=partial, old="true", new="false")]


def warn_lag(graph: Graph) -> tuple[Diagnostic, ...]:
    """What is legal and likely not meant: samples older than a loss takes them for (FR0604, FR0606), and keys about
    age that change nothing (FR0602, FR0603, FR0605, FR0607)."""
    lags = path_lags(graph)
    own = {lag.update: lag for lag in lags if lag.edge.startswith(f"{graph.op(lag.update).role} ")}
    found = (_stale(graph, op) or _seldom(graph, op, own) or _uncorrectable(op) for op in graph.ops)
    return (
        *(d for d in found if d is not None),
        *_nothing_dropped(graph),
        *_nothing_follows(graph, lags),
        *_never_read(graph),
    )


def _stale(graph: Graph, op: Op) -> Diagnostic | None:
    """FR0604 for a loss that takes old samples as fresh ones: at lag > 0, not safe off policy, not corrected, and no
    ratio to the rollout's own log-probs."""
    rollout = rollout_of(graph, op)
    edge = None if rollout is None else weights_edge(graph, op.role, rollout.role)
    if edge is None or edge.tokens < 2 or _takes_old(op):
        return None
    assert isinstance(op.params, UpdateParams)
    lag = edge.tokens - 1
    versions = "1 version" if lag == 1 else f"{lag} versions"
    span = graph.schedule.spans.get("max_lag") or edge.span
    return diagnose("FR0604", span, edge=edge.id, lag=versions, op=op.id, loss=op.params.loss, role=op.role)


def _seldom(graph: Graph, op: Op, own: Mapping[str, PathLag]) -> Diagnostic | None:
    """FR0606: lag 0, but the newest version is several steps old, because the edge seldom publishes."""
    lag = own.get(op.id)
    edge = None if lag is None else _edge(graph, lag.edge)
    if lag is None or edge is None or lag.drift_minibatches < op.firings or edge.tokens > 1 or _takes_old(op):
        return None
    assert isinstance(op.params, UpdateParams)
    drift, loss = lag.drift_minibatches, op.params.loss
    return diagnose("FR0606", edge.span, drift=drift, op=op.id, loss=loss, role=op.role)


def _takes_old(op: Op) -> bool:
    """Whether the op is no update of a loss that needs samples of the step's own weights."""
    if not isinstance(op.params, UpdateParams):
        return True
    loss = LOSSES[op.params.loss]
    safe = loss.off_policy_safe or bool(op.params.corrections)
    return safe or (loss.ratio and op.params.old_log_probs == "rollout")


def _uncorrectable(op: Op) -> Diagnostic | None:
    """FR0603: a correction compares the old log-probs with the rollout's, and both are the rollout's."""
    if not isinstance(op.params, UpdateParams) or not op.params.corrections:
        return None
    if not any(i.slot == "old_log_probs" and i.field == "rollout_log_probs" for i in op.inputs):
        return None
    names = ", ".join(dict.fromkeys(c.name for c in op.params.corrections))
    return diagnose("FR0603", op.spans.get("correction") or op.span, op=op.id, names=names, role=op.role)


def _nothing_dropped(graph: Graph) -> Iterator[Diagnostic]:
    """FR0602: refill where every prompt that is drawn is trained on."""
    rows = rows_of(graph)
    trained = [op for op in graph.ops if op.method == "update"]
    if graph.step.refill is None or graph.schedule.when_stale == "drop" or any(map(rows.refilled, trained)):
        return
    span = graph.step.spans.get("refill") or next((op.span for op in trained), None)
    yield diagnose("FR0602", span, prompts=graph.step.prompts)


def _nothing_follows(graph: Graph, lags: tuple[PathLag, ...]) -> Iterator[Diagnostic]:
    """FR0605: lag where no weights reach what makes the samples."""
    schedule = graph.schedule
    asked = {"max_lag": schedule.max_lag > 0, "partial_rollout": schedule.partial_rollout}
    for key, is_asked in asked.items():
        if is_asked and key in schedule.spans and not lags:
            yield diagnose("FR0605", schedule.spans[key], key=key)
            return


def _never_read(graph: Graph) -> Iterator[Diagnostic]:
    """FR0607: versions inside a step, and a receiver that always waits for the last one."""
    for edge in graph.edges:
        versions = versions_per_step(graph, edge) if edge.kind is EdgeKind.WEIGHTS else 1
        if versions > 1 and edge.tokens == versions:
            yield diagnose("FR0607", edge.span, edge=edge.id, versions=versions, target=edge.target)


def _edge(graph: Graph, id: str) -> Edge | None:
    return next((e for e in graph.edges if e.id == id and e.kind is EdgeKind.WEIGHTS), None)
