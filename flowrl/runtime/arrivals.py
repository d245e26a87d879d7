"""What sessions have handed on so far, and which of it a minibatch is made of. Ids only, never rows.

Takes the program for the borders of its takes; gives ids. A minibatch by arrival is a whole number of takes, or one of
the equal shares of a take: of its prompts where takes give whole prompts, else of its samples.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from flowrl.backends.batch import IntArray
from flowrl.execution.contract import Firing
from flowrl.graph.graph import Graph
from flowrl.program.program import Instruction, InstructionKind, Rows
from flowrl.program.sessions import by_prompt
from flowrl.runtime.launchers.contract import Part

_NONE: IntArray = np.zeros(0, dtype=np.int64)
_Given = tuple[IntArray, IntArray]


class Arrivals:
    """Of one stage."""

    def __init__(self, graph: Graph, instructions: tuple[Instruction, ...]) -> None:
        opened = {i.op for i in instructions if i.kind is InstructionKind.OPEN and i.op is not None}
        takes = [i for i in instructions if i.kind is InstructionKind.TAKE]
        self._borders = {op: tuple(i.rows for i in takes if i.op == op) for op in opened}
        self._by_prompt = {op for op in opened if by_prompt(graph, instructions, op)}
        self._given: dict[tuple[str, int, int], _Given] = {}
        """Ids and their prompts, by op, step and number of the take."""

    def by_prompt(self, op: str) -> bool:
        """Whether its takes give whole prompts."""
        return op in self._by_prompt

    def add(self, op: str, step: int, number: int, parts: Iterable[Part]) -> None:
        """Take note of what a take has given."""
        found = list(parts)
        ids = np.concatenate([_NONE, *(part.ids for part in found)])
        order = np.argsort(ids, kind="stable")
        prompts = np.concatenate([_NONE, *(part.prompt_ids for part in found)])
        self._given[op, step, number] = (ids[order], prompts[order])

    def given(self, op: str, firing: Firing) -> IntArray:
        """Ids that a firing takes, ascending within a take: of its part, or of its minibatch as they came."""
        step, rows = firing.step, firing.instruction.rows
        if not rows.arrived:
            return self._given[op, step, firing.instruction.firing][0]
        borders = self._borders[op]
        size = (borders[0].stop or 0) - borders[0].start
        found = [
            self._share(op, step, number, rows, take.start, size)
            for number, take in enumerate(borders)
            if take.start + size > rows.start and (rows.stop is None or take.start < rows.stop)
        ]
        return np.concatenate([_NONE, *found])

    def step_done(self, step: int) -> None:
        """Forget a step that is over."""
        for key in [key for key in self._given if key[1] <= step]:
            del self._given[key]

    def _share(self, op: str, step: int, number: int, rows: Rows, start: int, size: int) -> IntArray:
        """Of one take the rows between two shares of it."""
        ids, prompts = self._given[op, step, number]
        units = np.unique(prompts) if op in self._by_prompt else ids
        first = max(0, rows.start - start) * len(units) // size
        last = len(units) if rows.stop is None else min(size, rows.stop - start) * len(units) // size
        return ids[np.isin(prompts if op in self._by_prompt else ids, units[first:last])]
