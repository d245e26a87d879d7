"""The metric that a gate looks at, checked against the ops of its stage before anything runs.

Takes a stage and its ops; keeps the problem in the stage. What each kind of role reports beside its columns stands
here; a backend may report more, so of roles with a backend only a name near a known one is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flowrl.compiler.lower.stage import Stage
from flowrl.diag.diagnostic import Diagnostic, Help, diagnose
from flowrl.diag.near import near_names
from flowrl.graph.graph import Graph, Kind, Op
from flowrl.graph.types import element

METRICS: Mapping[Kind, tuple[str, ...]] = {
    Kind.TRAINER: (
        "loss", "grad_norm", "lr", "kl", "kl_ref", "entropy", "clip_fraction", "clip_dual_fraction",
        "correction_weight", "skipped", "rollout_log_prob_diff_mean", "rollout_log_prob_diff_max",
    ),
    Kind.GENERATOR: ("response_tokens", "response_tokens_p99", "truncated"),
    Kind.REWARD: ("failed",),
    Kind.ESTIMATOR: ("zero_spread",),
}  # fmt: skip
"""What a role of each kind reports beside the columns that its ops write."""

TEXTS = ("str", "bytes", "messages", "image")
"""Types of columns that have no mean."""

OPEN = (Kind.TRAINER, Kind.GENERATOR, Kind.SCORER)
"""Kinds whose backends may report metrics of their own."""


def check_gate(stage: Stage, ops: Sequence[Op]) -> None:
    """FR0130 for a gate on a metric that nothing in the stage can report."""
    gate = stage.document.gate
    if gate is None:
        return
    name, _, label = gate.metric.partition("@")
    role, dot, field = name.partition(".")
    if not (role and dot and field):
        _refuse(stage, f"`{gate.metric}` is no metric", "write `role.field` or `role.field@label`")
        return
    own = [op for op in ops if op.role == role]
    if not own and role in stage.document.roles and stage.problems:
        return  # its ops may be missing for a reason that is told already
    if not own:
        roles = sorted({op.role for op in ops if "." not in op.role})
        _refuse_name(stage, f"no op of `{role}` is in the stage", role, roles, f"{{}}{gate.metric[len(role) :]}")
        return
    called = [op for op in own if op.label == (label or None)]
    if not called:
        _refuse_call(stage, role, field, label, own)
        return
    _check_field(stage, role, field, called, f"{role}.{{}}{gate.metric[len(name) :]}")


def removed_metric(stage: Stage, graph: Graph) -> Diagnostic | None:
    """FR0130 for a gate on an op that a pass took away, so that nothing would ever report its metric."""
    gate = stage.document.gate
    if gate is None:
        return None
    name, _, label = gate.metric.partition("@")
    role = name.partition(".")[0]
    if any(op.role == role and op.label == (label or None) for op in graph.ops):
        return None
    ops = (r for r in graph.removed if r.id.startswith(f"{role}.") and " " not in r.id)
    gone = next((r for r in ops if r.id.partition("@")[2] == label), None)
    why = "it is removed" if gone is None else f"it is removed: {gone.text}"
    helps = [Help(text=f"look at a metric of an op that stays, or let one read `{role}`")]
    problem = f"nothing reports `{gate.metric}`: {why}"
    return diagnose("FR0130", stage.span("gate", "metric"), helps=helps, problem=problem)


def _check_field(stage: Stage, role: str, field: str, called: Sequence[Op], form: str) -> None:
    kind = Kind(stage.document.roles[role].kind) if role in stage.document.roles else Kind.DATA
    columns = [column.name for op in called for column in op.outputs if element(column.dtype) not in TEXTS]
    known = [*dict.fromkeys((*columns, *METRICS.get(kind, ())))]
    if any(column.name == field for op in called for column in op.outputs if element(column.dtype) in TEXTS):
        _refuse_name(stage, f"`{role}.{field}` is text, and a gate compares numbers", field, known, form)
        return
    if field in known or (kind in OPEN and not near_names(field, known)):
        return
    _refuse_name(stage, f"`{role}` reports no `{field}`", field, known, form)


def _refuse_call(stage: Stage, role: str, field: str, label: str, own: Sequence[Op]) -> None:
    """The role is there, but not the call that the metric is of."""
    calls = [f"{role}.{field}" + ("" if op.label is None else f"@{op.label}") for op in own]
    problem = f"no edge calls `{role}` with the label `{label}`" if label else f"`{role}` is called with labels only"
    _refuse(stage, problem, f"its metrics are {', '.join(f'`{name}`' for name in dict.fromkeys(calls))}")


def _refuse_name(stage: Stage, problem: str, name: str, known: Sequence[str], form: str) -> None:
    """`form` is the metric with `{}` in the place of the wrong name."""
    near = near_names(name, known)
    span = stage.span("gate", "metric")
    fix = f"a near name exists: `{near[0]}`" if near else f"name one of: {', '.join(known)}"
    helps = [stage.edit(fix, span, form.format(name), form.format(near[0]))] if near else [Help(text=fix)]
    stage.refuse("FR0130", span, helps, problem=problem)


def _refuse(stage: Stage, problem: str, fix: str) -> None:
    stage.refuse("FR0130", stage.span("gate", "metric"), [Help(text=fix)], problem=problem)
