"""Firings under way on Ray: references of what ranks will answer, and what has come of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from flowrl.backends.batch import IntArray
from flowrl.runtime.launchers.contract import BoundInput, Completion, Part, Work
from flowrl.runtime.launchers.ray_actor import Outcome, Slot
from flowrl.runtime.metrics import merge


@dataclass(slots=True, eq=False)
class Flight:
    work: Work
    pending: dict[Any, int] = field(default_factory=dict[Any, int])
    """Reference of an outcome that is to come → its rank."""
    rows: dict[int, Any] = field(default_factory=dict[int, Any])
    """Rank → reference of its rows."""
    outcomes: dict[int, Outcome] = field(default_factory=dict[int, Outcome])
    began_seconds: float = 0.0

    @property
    def role(self) -> str:
        return self.work.firing.instruction.role

    def completion(self) -> Completion:
        """When all ranks are done."""
        outcomes = [self.outcomes[rank] for rank in sorted(self.outcomes)]
        start = min(outcome.start_seconds for outcome in outcomes)
        end = max(outcome.start_seconds + outcome.seconds for outcome in outcomes)
        metrics = merge([outcome.metrics for outcome in outcomes])
        return Completion(self.work, self.parts(), metrics, start, end - start, None)

    def parts(self) -> tuple[Part, ...]:
        """What the ranks that are done have made."""
        made = [(self.outcomes[rank].part, rows) for rank, rows in sorted(self.rows.items()) if rank in self.outcomes]
        return tuple(replace(part, handle=rows) for part, rows in made if part is not None)


def slots_of(inputs: Sequence[BoundInput], ids: IntArray | None) -> tuple[tuple[Slot, ...], list[Any]]:
    """Slots and the references they take their rows from, each once, only those that have some of the rows."""
    references: dict[Any, int] = {}
    slots: list[Slot] = []
    for bound in inputs:
        parts = bound.record.parts
        if ids is not None and not bound.by_prompt and len(parts) > 1:
            parts = tuple(part for part in parts if np.isin(part.ids, ids).any()) or parts[:1]
        places = tuple(references.setdefault(part.handle, len(references)) for part in parts)
        slots.append(Slot(bound.slot, bound.field, places, bound.by_prompt))
    return tuple(slots), list(references)
