"""Gates: a metric that a stage must reach before the next one begins. Pure; takes numbers, gives a verdict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from flowrl.diag.diagnostic import FlowError, diagnose
from flowrl.plan.plan import Gate, StagePlan


def holds(gate: Gate, value: float) -> bool:
    """Whether `value` passes: at least and at most, where given. A value that is not a number does not."""
    low = gate.at_least is None or value >= gate.at_least
    high = gate.at_most is None or value <= gate.at_most
    return low and high and value == value


def leaves_stage(stage: StagePlan, metrics: Mapping[str, float]) -> bool:
    """Whether the stage ends here: `when: first` and the metrics of this step pass."""
    gate = stage.gate
    if gate is None or gate.when != "first" or gate.metric not in metrics:
        return False
    return holds(gate, metrics[gate.metric])


def require_passed(stage: StagePlan, steps: Iterable[Mapping[str, float]]) -> bool:
    """At the stage's end: whether the last value of the gate's metric passes (true without a gate).

    Raises FlowError FR0909 if it does not and `otherwise: stop`, FR0910 if no step has had the metric.
    """
    gate = stage.gate
    if gate is None:
        return True
    lines = list(steps)
    seen = [line[gate.metric] for line in lines if isinstance(line.get(gate.metric), int | float)]
    if not seen:
        known = ", ".join(f"`{name}`" for name in sorted({name for line in lines for name in line if "." in name}))
        raise FlowError(diagnose("FR0910", gate.span, stage=stage.name, metric=gate.metric, known=known or "none"))
    if holds(gate, seen[-1]):
        return True
    if gate.otherwise == "continue":
        return False
    value, wanted = f"{seen[-1]:.4g}", _wanted(gate)
    raise FlowError(diagnose("FR0909", gate.span, stage=stage.name, metric=gate.metric, value=value, wanted=wanted))


def _wanted(gate: Gate) -> str:
    parts = [
        f"at least {gate.at_least:g}" if gate.at_least is not None else "",
        f"at most {gate.at_most:g}" if gate.at_most is not None else "",
    ]
    return " and ".join(part for part in parts if part) or "any value"
