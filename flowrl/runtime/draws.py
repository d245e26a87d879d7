"""Draws: which prompts a step has drawn, round by round, and which of them its filters have left. Ids only, no rows.

With `step.refill` a round draws `oversample` prompts for each that is still needed; it ends when filters have left
`step.prompts`. The first of these, in the order of the data set, are trained on. More than that are not: kept for the
next step they would be older than it says (ADR 0117).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil

import numpy as np

from flowrl.backends.batch import IntArray
from flowrl.diag.diagnostic import FlowError, diagnose
from flowrl.graph.graph import Graph, Kind
from flowrl.graph.params import FilterParams
from flowrl.graph.rows import rows_of
from flowrl.runtime.launchers.contract import BoundInput, Part

_NONE: IntArray = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Fates:
    """What a step has drawn of one data set on whose rows filters decide."""

    data: str
    drawn: IntArray
    """Prompts, ascending."""
    surplus: IntArray
    """Prompts that filters have left and the step did not need."""
    kept: IntArray
    """Prompts that filters which drop have left, surplus among them."""
    rounds: int | None
    """None without refill."""
    masks: bool = False
    """Whether a filter keeps rows out of the loss: what is left and not trained on is masked then."""


class Draws:
    """Of one stage, until its steps are over."""

    def __init__(self, graph: Graph) -> None:
        rows = rows_of(graph)
        self._graph, self._refill = graph, graph.step.refill
        self.round = rows.round
        """Ops of a round; none without refill."""
        dropping = [
            op
            for op in graph.ops
            if isinstance(op.params, FilterParams) and op.params.action == "drop" and not rows.whole_set(op)
        ]
        masking = [op for op in graph.ops if isinstance(op.params, FilterParams) and op.params.action == "mask"]
        sets = [op.id for op in graph.ops if graph.role(op.role).kind is Kind.DATA]
        self._filters = {data: tuple(op.id for op in dropping if data in rows.data_sets(op)) for data in sets}
        """The filters that drop rows of each data set."""
        self._masked = {data for data in sets if any(data in rows.data_sets(op) for op in masking)}
        self._drawn: dict[tuple[str, int], list[IntArray]] = {}
        """By data set and step, round by round."""
        self._left: dict[tuple[str, int], IntArray] = {}
        """By filter and step, prompts of all rounds so far."""
        self._chosen: dict[tuple[str, int], IntArray] = {}

    def is_refilled(self, data: str) -> bool:
        return self._refill is not None and data in self.round

    def count(self, data: str, step: int) -> int:
        """Prompts that the next round draws of a data set."""
        assert self._refill is not None
        needed = max(0, self._graph.step.prompts - len(self._kept(data, step)))
        return ceil(needed * Fraction(str(self._refill.oversample)))

    def drew(self, data: str, step: int, prompts: Iterable[IntArray]) -> None:
        """Prompts that a data set has given in a round."""
        if self._filters[data] or data in self._masked:
            self._drawn.setdefault((data, step), []).append(np.unique(np.concatenate([_NONE, *prompts])))

    def left(self, filter: str, step: int, prompts: IntArray) -> None:
        """Prompts of which a filter has left rows in a round."""
        self._left[filter, step] = np.union1d(self._left.get((filter, step), _NONE), prompts)

    def now(self, op: str, step: int) -> set[int] | None:
        """The prompts of the round under way; None for an op of no round."""
        if op not in self.round:
            return None
        rounds = [drawn[-1] for (data, at), drawn in self._drawn.items() if at == step and data in self.round]
        return set(np.concatenate([_NONE, *rounds]).tolist())

    def of_round(self, inputs: Sequence[BoundInput], prompts: set[int] | None) -> tuple[BoundInput, ...]:
        """The inputs without parts that have nothing of `prompts`: an earlier round's rows need not travel again."""
        if prompts is None:
            return tuple(inputs)
        wanted = np.asarray(sorted(prompts), dtype=np.int64)
        return tuple(_of_prompts(bound, wanted) for bound in inputs)

    def is_short(self, step: int) -> bool:
        """Whether some data set has too few prompts left."""
        return any(len(self._kept(data, step)) < self._graph.step.prompts for data in self._of_step(step))

    def choose(self, step: int) -> Mapping[str, IntArray]:
        """The rounds are over: the prompts that are trained on, by filter."""
        for data in self._of_step(step):
            self._chosen[data, step] = self._kept(data, step)[: self._graph.step.prompts]
        return {id: self._chosen[data, step] for data in self._of_step(step) for id in self._filters[data]}

    def too_few(self, step: int, rounds: int) -> FlowError:
        """FR0856: the rounds are used up."""
        prompts = self._graph.step.prompts
        data = min(self._of_step(step), key=lambda data: len(self._kept(data, step)))
        drawn, kept = sum(map(len, self._drawn[data, step])), len(self._kept(data, step))
        facts = {
            "step": step,
            "rounds": rounds,
            "drawn": drawn,
            "data": data,
            "kept": kept,
            "prompts": prompts,
            "share": f"{kept / max(1, drawn):.0%}",
            "filters": ", ".join(f"`{id}`" for id in self._filters[data]),
        }
        return FlowError(diagnose("FR0856", self._graph.step.spans.get("refill"), **facts))

    def fates(self, step: int, carried: Iterable[str] = ()) -> tuple[Fates, ...]:
        """What has become of all that the step drew, but for `carried`: data sets whose prompts may go on."""
        left_out = set(carried)
        found: list[Fates] = []
        for (data, at), drawn in self._drawn.items():
            if at != step or data in left_out:
                continue
            kept = self._kept(data, step) if self._filters[data] else np.concatenate(drawn)
            surplus = np.setdiff1d(kept, self._chosen.get((data, step), kept))
            rounds = len(drawn) if self.is_refilled(data) else None
            fates = Fates(data, np.concatenate(drawn), surplus, kept, rounds, masks=data in self._masked)
            found.append(fates)
        return tuple(found)

    def step_done(self, step: int) -> None:
        for known in (self._drawn, self._left, self._chosen):
            for key in [key for key in known if key[1] <= step]:
                del known[key]

    def _of_step(self, step: int) -> list[str]:
        """Data sets that a round of the step has drawn from."""
        return [data for data, at in self._drawn if at == step and data in self.round]

    def _kept(self, data: str, step: int) -> IntArray:
        """Prompts that every filter has left, ascending."""
        kept: IntArray | None = None
        for id in self._filters[data]:
            left = self._left.get((id, step), _NONE)
            kept = left if kept is None else np.intersect1d(kept, left)
        return _NONE if kept is None else kept


def _of_prompts(bound: BoundInput, prompts: IntArray) -> BoundInput:
    parts: tuple[Part, ...] = tuple(p for p in bound.record.parts if np.isin(p.prompt_ids, prompts).any())
    return replace(bound, record=replace(bound.record, parts=parts or bound.record.parts[-1:]))
