"""insert_weight_sync: the edges on which weight versions travel."""

from __future__ import annotations

from msgspec.structs import replace

from flowrl.diag.diagnostic import Diagnostic, diagnose
from flowrl.graph.graph import Edge, EdgeKind, Graph, Kind
from flowrl.graph.rates import versions_per_step


def insert_weight_sync(graph: Graph) -> Graph:
    """Lower each declared weights edge, with as many initial tokens as versions may be in flight.

    before: declared actor_train => actor_infer                (schedule.max_lag 0)
    after:  weights actor_train => actor_infer tokens=1        the version loaded at the start
            at max_lag 2: tokens=3; with p versions a step (every_updates): tokens = p + max_lag

    Requires: dead roles removed. Ensures: a declared weights edge between live roles is lowered; its tokens are the
    versions of one step and max_lag more; what says no more than that a version is published once a step is left out.
    """
    live = {role.name for role in graph.roles}
    declared = (e for e in graph.declared if e.kind is EdgeKind.WEIGHTS and {e.source, e.target} <= live)
    synced = (_lowered(graph, edge) for edge in declared)
    others = (e for e in graph.edges if e.kind is not EdgeKind.WEIGHTS)
    return replace(graph, edges=(*others, *synced))


def warn_unsynced(graph: Graph) -> tuple[Diagnostic, ...]:
    """FR0305 for each generator that trainers leave at its initial weights."""
    trainers = [r for r in graph.roles if r.trainable and r.model is not None and graph.model(r.model).head != "scalar"]
    if not trainers:
        return ()
    reached = {edge.target for edge in graph.declared if edge.kind is EdgeKind.WEIGHTS}
    generators = (r for r in graph.roles if r.kind is Kind.GENERATOR and not r.frozen and r.name not in reached)
    return tuple(diagnose("FR0305", r.span, role=r.name, trainer=trainers[0].name) for r in generators)


def _lowered(graph: Graph, edge: Edge) -> Edge:
    max_lag = edge.tokens - 1 if edge.tokens else graph.schedule.max_lag
    versions = versions_per_step(graph, edge)
    return replace(
        edge,
        origin=(edge.id,),
        tokens=versions + max_lag,
        every_steps=None if edge.every_steps == 1 else edge.every_steps,
        every_updates=None if versions == 1 else edge.every_updates,
        start_step=edge.start_step or None,
    )
