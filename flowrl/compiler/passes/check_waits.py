"""check_waits: waits that nothing ends. Only warnings; the runtime also tells who waits for whom when a run stalls."""

from __future__ import annotations

from flowrl.diag.diagnostic import Diagnostic, diagnose
from flowrl.graph.algorithms import reachable
from flowrl.graph.graph import Edge, EdgeKind, Graph, Kind, Op
from flowrl.graph.judges import judge_of
from flowrl.graph.lag import rollout_of
from flowrl.graph.params import AskParams

_WAITS = (EdgeKind.DATA, EdgeKind.INTERACTION)


def check_waits(graph: Graph) -> Graph:
    """The graph as it is; `warn_waits` looks at its waits.

    before: lag 2, generate <-> env.step, generate -> update     no edge has timeout_seconds
    after:  the same, FR0614: one episode that never ends holds up the step

    Requires: weights edges lowered. Ensures: nothing.
    """
    return graph


def warn_waits(graph: Graph) -> tuple[Diagnostic, ...]:
    """FR0614 for the updates of an asynchronous flow that wait without a limit, once; FR0615 for each reward that asks
    a server without saying what happens when it does not answer."""
    remote = (d for op in graph.ops if (d := _remote(graph, op)) is not None)
    return (*_endless(graph), *remote)


def _endless(graph: Graph) -> tuple[Diagnostic, ...]:
    """What FlowRL runs itself ends or is seen to fail; a row that is out with a program of somebody else may be lost.
    At lag 0 it holds up everyone, and is seen; ahead of training nobody misses it."""
    ahead = {e.target for e in graph.edges if e.kind is EdgeKind.WEIGHTS and e.tokens > 1}
    for op in sorted(graph.ops, key=lambda o: o.id):
        rollout = rollout_of(graph, op) if op.method == "update" else None
        if rollout is None or rollout.role not in ahead:
            continue
        upstream = _upstream(graph, op)
        outside = next((o for o in graph.ops if o.id in upstream and _is_outside(graph, o)), None)
        waits = [e for e in graph.declared if e.target in upstream and e.kind in _WAITS]
        if outside is None or any(e.timeout_seconds is not None for e in waits):
            continue
        edge = _written(graph, next((e for e in waits if outside.id in (e.source, e.target)), waits[0]))
        return (diagnose("FR0614", edge.span or op.span, op=op.id, outside=judge_of(outside), edge=edge.id),)
    return ()


def _written(graph: Graph, edge: Edge) -> Edge:
    """The edge that feeds the caller, where `edge` feeds an inner call."""
    return next((e for e in graph.declared if e.id in edge.origin[:1]), edge)


def _upstream(graph: Graph, op: Op) -> frozenset[str]:
    pairs = [(e.target, e.source) for e in graph.declared if e.kind in _WAITS]
    pairs += [(e.source, e.target) for e in graph.declared if e.kind is EdgeKind.INTERACTION]
    return reachable((op.id,), pairs)


def _is_outside(graph: Graph, op: Op) -> bool:
    if graph.role(op.role).kind is Kind.ENV:
        return op.method == "step"
    return isinstance(op.params, AskParams) and op.params.endpoint is not None and op.params.timeout_seconds is None


def _remote(graph: Graph, op: Op) -> Diagnostic | None:
    params = op.params
    if not isinstance(params, AskParams):
        return None
    endpoint, role = params.endpoint, graph.role(op.role)
    if endpoint is None or (params.timeout_seconds is not None and role.on_error != "abort"):
        return None
    lacks = (
        ["an answer that never comes is waited for (no `timeout_seconds`)"] if params.timeout_seconds is None else []
    )
    lacks += ["one failed call ends the run (`on_error: abort`)"] if role.on_error == "abort" else []
    return diagnose("FR0615", role.span, role=role.name, endpoint=endpoint, lacks="; ".join(lacks))
