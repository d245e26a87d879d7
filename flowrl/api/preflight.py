"""What a run would meet half-way, asked before anything starts: names without an implementation, and missing packages.

Looks at a Plan only. Imports no backend and no torch.
"""

from __future__ import annotations

from collections.abc import Iterator

from flowrl.algos.names import implemented
from flowrl.backends.registry import locate
from flowrl.diag.diagnostic import Diagnostic, FlowError, diagnose
from flowrl.graph.graph import Graph, Op
from flowrl.graph.params import EstimateParams, UpdateParams
from flowrl.plan.plan import Plan


def preflight(plan: Plan) -> None:
    """Raise FlowError with everything in the plan that cannot run (FR0801 not built, FR0802 unknown)."""
    faults = [fault for stage in plan.stages for fault in _faults(stage.graph)]
    if faults:
        raise FlowError(dict.fromkeys(faults))


def _faults(graph: Graph) -> Iterator[Diagnostic]:
    for role in graph.roles:
        try:
            locate(role)
        except FlowError as error:
            yield from error.diagnostics
    known = implemented()
    for op in graph.ops:
        for kind, name in _named(op):
            if name not in known[kind]:
                yield diagnose(
                    "FR0801",
                    op.span,
                    what=f"`{op.role}`: {kind} `{name}`",
                    known=", ".join(f"`{each}`" for each in sorted(known[kind])),
                )
    if graph.schedule.max_lag > 0:
        yield diagnose(
            "FR0801", None, what=f"`{graph.name}`: max_lag {graph.schedule.max_lag}", known="lag 0 (on-policy)"
        )


def _named(op: Op) -> Iterator[tuple[str, str]]:
    params = op.params
    if isinstance(params, UpdateParams):
        yield "loss", params.loss
        yield "aggregate", params.aggregate
        yield from (("correction", each.name) for each in params.corrections)
    if isinstance(params, EstimateParams):
        yield "estimator", params.estimator
    if isinstance(params, UpdateParams | EstimateParams) and params.kl is not None:
        yield "kl", params.kl.form
