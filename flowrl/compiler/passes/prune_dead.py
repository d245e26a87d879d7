"""prune_dead: take away what nobody reads, with a reason for each."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from flowrl.compiler.edges import data_edges
from flowrl.compiler.hidden import hidden_rewards
from flowrl.diag.diagnostic import Diagnostic, FlowError, diagnose
from flowrl.graph.algorithms import reachable
from flowrl.graph.graph import Edge, EdgeKind, Graph, Kind, Op, Removal
from flowrl.graph.records import records

ROOTS = frozenset(
    {
        (Kind.TRAINER, "update"),
        (Kind.REWARD, "score"),
        (Kind.REWARD, "compare"),
        (Kind.FILTER, "select"),
        (Kind.ENV, "step"),
    }
)
"""Ops that are wanted for themselves: they train, they are logged as metrics (an environment's step makes rewards too),
or they drop rows."""


def prune_dead(graph: Graph) -> Graph:
    """Remove ops whose columns nobody reads, roles left without ops, and edges that carry nothing.

    before: generate -> reference.log_probs -> update          (update has no KL)
    after:  generate -> update                                 removed: reference, its op, its two edges:
                                                               unread_at_zero_kl

    Requires: bound inputs. Ensures: every op is one of ROOTS, or is read by one that stays; each
    declared data edge is the origin of a lowered one or has a removal.
    """
    live = live_ops(graph)
    if not any(_is_root(graph, op) for op in graph.ops):
        span = graph.ops[0].span if graph.ops else next(iter(graph.step.spans.values()), None)
        raise FlowError(diagnose("FR0309", span))
    dead = [op for op in graph.ops if op.id not in live]
    ops = tuple(op for op in graph.ops if op.id in live)
    used = {op.role for op in ops}
    roles = tuple(role for role in graph.roles if role.name in used)
    edges = _relowered(graph, ops, live) if dead else graph.edges
    removals = [_removed_op(graph, op) for op in dead]
    removals += _removed_roles(graph, used, removals)
    removals += _removed_edges(graph, edges, used, removals)
    return replace(graph, ops=ops, roles=roles, edges=edges, removed=(*graph.removed, *removals))


def live_ops(graph: Graph) -> frozenset[str]:
    """The roots and every op that a live one reads."""
    back = [(e.target, e.source) for e in graph.edges if e.kind is EdgeKind.DATA]
    back += [pair for e in graph.edges if e.kind is EdgeKind.INTERACTION for pair in _both(e)]
    return reachable((op.id for op in graph.ops if _is_root(graph, op)), back)


def warn_unread(graph: Graph) -> tuple[Diagnostic, ...]:
    """What prune_dead will take away unasked: ops nobody reads (FR0307), edges with nothing on them (FR0306), roles
    without edges (FR0310); and rewards that only a metric is left of (FR0620)."""
    pruned = prune_dead(graph)
    reasons = {removal.id: removal.reason for removal in pruned.removed}
    ops = (
        diagnose("FR0307", op.span, op=op.id, fields=", ".join(field.name for field in op.outputs))
        for op in graph.ops
        if reasons.get(op.id) == "unread"
    )
    idle = (edge for edge in graph.declared if reasons.get(edge.id) == "nothing_read" and not edge.derived)
    edges = (diagnose("FR0306", edge.span) for edge in idle)
    named = {op.role for op in graph.ops}
    roles = (diagnose("FR0310", role.span, role=role.name) for role in graph.roles if role.name not in named)
    return (*ops, *edges, *roles, *hidden_rewards(graph))


def _both(edge: Edge) -> tuple[tuple[str, str], tuple[str, str]]:
    return (edge.source, edge.target), (edge.target, edge.source)


def _is_root(graph: Graph, op: Op) -> bool:
    return (graph.role(op.role).kind, op.method) in ROOTS


def _relowered(graph: Graph, ops: tuple[Op, ...], live: frozenset[str]) -> tuple[Edge, ...]:
    """Edges between live ops. Origins leave out the ways through dead ops where another way brings the field."""
    alive = [e for e in graph.declared if e.source in live and e.target in live]
    drawn = {end for e in alive for end in (e.source, e.target)}  # inner calls too, not what passes added
    found = records((op for op in ops if op.id in drawn or not op.derived), graph.roles, alive)
    ways = {edge.id: edge.origin for op in ops for edge in data_edges(op, found)}
    kept = (e for e in graph.edges if e.source in live and e.target in live)
    return tuple(replace(e, origin=ways.get(e.id) or e.origin) for e in kept)


def _removed_op(graph: Graph, op: Op) -> Removal:
    reason = _reason(graph, op)
    fields = ", ".join(field.name for field in op.outputs)
    text = {
        "unread_at_zero_kl": f"nothing reads {fields}: no KL stands in a reward or a loss",
        "log_probs_not_needed": "the rollout's own log-probs serve: lag 0 and one update a step, or no loss reads them",
        "unread": f"nothing reads {fields}",
    }
    return Removal(id=op.id, reason=reason, text=text[reason])


def _reason(graph: Graph, op: Op) -> str:
    kind = graph.role(op.role).kind
    if op.method == "log_probs" and kind is Kind.SCORER:
        return "unread_at_zero_kl"
    if op.method == "log_probs" and kind is Kind.TRAINER:
        return "log_probs_not_needed"
    return "unread"


def _removed_roles(graph: Graph, used: set[str], removed: Iterable[Removal]) -> list[Removal]:
    reasons = {removal.id: removal for removal in removed}
    found: list[Removal] = []
    for role in graph.roles:
        if role.name in used:
            continue
        own = [reasons[op.id] for op in graph.ops if op.role == role.name]
        reason = own[0].reason if own else "unread"
        text = "none of its ops is left" if own else "no edge names an op of it"
        found.append(Removal(id=role.name, reason=reason, text=text))
    return found


def _removed_edges(graph: Graph, edges: tuple[Edge, ...], used: set[str], removed: Iterable[Removal]) -> list[Removal]:
    """Declared edges that no lowered one comes from: with the reason of the op or role they lost, else nothing_read."""
    gone = {removal.id: removal for removal in removed}
    kept = {id for edge in edges for id in edge.origin}
    found: list[Removal] = []
    for edge in graph.declared:
        lost = [gone[end] for end in (edge.source, edge.target) if end in gone]
        if edge.kind is EdgeKind.WEIGHTS and not lost:
            continue
        if edge.id in kept:
            continue
        if lost:
            found.append(Removal(id=edge.id, reason=lost[0].reason, text=f"`{lost[0].id}` was removed"))
        else:
            text = "nothing that is read travels on it"
            found.append(Removal(id=edge.id, reason="nothing_read", text=text))
    return found
