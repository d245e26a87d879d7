"""What a run would meet half-way, asked before anything starts: what is not built, and names that nobody knows.

Looks at a Plan only. Imports no backend and no torch.
"""

from __future__ import annotations

from collections.abc import Iterator

from flowrl.algos.names import implemented
from flowrl.api.unbuilt import UNBUILT
from flowrl.api.versions import version_faults
from flowrl.backends.registry import locate
from flowrl.diag.diagnostic import Diagnostic, FlowError, diagnose
from flowrl.graph.graph import Graph, Op
from flowrl.graph.params import EstimateParams, UpdateParams
from flowrl.plan.plan import Plan, StagePlan


def preflight(plan: Plan) -> None:
    """Raise FlowError with everything in the plan that cannot run (FR0801 not built, FR0802 unknown,
    FR0440 another version)."""
    faults = [fault for stage in plan.stages for fault in _faults(stage)]
    if faults:
        raise FlowError(dict.fromkeys(faults))


def refused(stage: StagePlan) -> tuple[str, ...]:
    """What of a stage a run would not do, in words, each once."""
    found = (f"{each.code}: {each.labels[0].text if each.labels else each.headline}" for each in _faults(stage))
    return tuple(dict.fromkeys(found))


def _faults(stage: StagePlan) -> Iterator[Diagnostic]:
    told: set[str] = set()
    for row in UNBUILT:
        for name, span in row.find(stage):
            told.update({name.partition(".")[0]} if row.whole else ())
            yield diagnose("FR0801", span, what=f"`{name}`: {row.what}", known=row.known)
    yield from _backends(stage.graph, told)
    yield from version_faults(stage.graph)
    yield from _names(stage.graph)


def _backends(graph: Graph, told: set[str]) -> Iterator[Diagnostic]:
    """A role that has been refused as a whole is not refused again for its backend."""
    for role in graph.roles:
        if role.name in told:
            continue
        try:
            locate(role)
        except FlowError as error:
            yield from error.diagnostics


def _names(graph: Graph) -> Iterator[Diagnostic]:
    known = implemented()
    for op in graph.ops:
        for kind, name in _named(op):
            if name not in known[kind]:
                names = ", ".join(f"`{each}`" for each in sorted(known[kind]))
                yield diagnose("FR0801", op.span, what=f"`{op.role}`: {kind} `{name}`", known=names)


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
