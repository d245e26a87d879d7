"""How often the trainers of one stage may fire in a step: each firing is instructions of their own in the plan.

Takes a validated flow; gives FR0034. document.py bounds updates and epochs each alone; this bounds what they make.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flowrl.diag.diagnostic import Diagnostic, diagnose
from flowrl.spec.flow import FlowSpec
from flowrl.spec.roles import TrainerRole

MOST_FIRINGS = 1024
"""Updates × epochs, added over the trainers of a stage. PPO's usual 4 × 15 of two trainers are 120; a firing plans in
about two milliseconds."""


def check_firings(spec: FlowSpec) -> Iterator[Diagnostic]:
    """FR0034 at the trainer with which a stage has more than MOST_FIRINGS."""
    for index in range(len(spec.stages)):
        yield from _of_stage(spec, index)


def _of_stage(spec: FlowSpec, index: int) -> Iterator[Diagnostic]:
    stage, total = spec.stages[index], 0
    for name, role in stage.roles.items():
        if not isinstance(role, TrainerRole):
            continue
        updates = role.update.updates or stage.step.updates
        epochs = role.update.epochs or stage.step.epochs
        total += updates * epochs
        if total > MOST_FIRINGS:
            keys = [(*base, key) for key in ("epochs", "updates") for base in (("roles", name, "update"), ("step",))]
            paths = [spec.stage_path(index, *path) for path in keys]
            span = next((spec.span(*path) for path in paths if spec.is_given(*path)), spec.span("roles", name))
            facts: dict[str, Any] = {"role": name, "updates": updates, "epochs": epochs, "firings": updates * epochs}
            yield diagnose("FR0034", span, total=total, limit=MOST_FIRINGS, **facts)
            return
