"""Verdicts: the rows of each step that filters have left, and which of them an op works on. Ids only, never rows.

A filter that drops takes its rows from everything below it; one that masks keeps them out of the loss of updates alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from flowrl.backends.batch import IntArray
from flowrl.graph.graph import Graph, Op
from flowrl.graph.rows import rows_of
from flowrl.runtime.launchers.contract import Part
from flowrl.runtime.rows import keeps_groups_whole

Chosen = tuple[IntArray, IntArray, IntArray]
"""Rows: ids, their prompts, their tokens."""
_NONE: IntArray = np.zeros(0, dtype=np.int64)


class Verdicts:
    """Of one stage. `space`: the generate call whose samples an op works on."""

    def __init__(self, graph: Graph, space: Callable[[Op], str | None]) -> None:
        rows = rows_of(graph)
        self._graph, self._space = graph, space
        self._dropping = {op.id: [each.id for each in rows.filters(op)] for op in graph.ops}
        """The filters that drop rows of each op."""
        self._masking = {
            op.id: [each.id for each in rows.governing(op) if each.id not in self._dropping[op.id]]
            for op in graph.ops
            if op.method == "update"
        }
        """The filters that keep rows out of an update's loss."""
        self._stay: dict[tuple[str, int], tuple[IntArray, IntArray]] = {}
        """Sample ids that a filter has left, and their prompts, by op and step."""

    def drop_rows_of(self, op: Op) -> bool:
        """Whether a filter drops rows of the op."""
        return bool(self._dropping[op.id])

    def add(self, op: Op, step: int, parts: Sequence[Part]) -> IntArray:
        """Take note of what a filter has left, of a round and those before it; gives the prompts."""
        ids, prompts = self._stay.get((op.id, step), (_NONE, _NONE))
        for part in parts:
            mine = np.ones(len(part.ids), dtype=np.bool_) if part.kept is None else np.isin(part.ids, part.kept)
            ids = np.concatenate([ids, part.ids[mine]])
            prompts = np.concatenate([prompts, part.prompt_ids[mine]])
        self._stay[op.id, step] = (ids, prompts)
        return prompts

    def narrow(self, step: int, chosen: Mapping[str, IntArray]) -> None:
        """Of what filters have left only these prompts stay."""
        for filter, prompts in chosen.items():
            ids, own = self._stay[filter, step]
            mine = np.isin(own, prompts)
            self._stay[filter, step] = (ids[mine], own[mine])

    def left(self, op: Op, step: int, rows: Chosen) -> Chosen:
        """The rows that the filters above leave; by prompt where a filter works on the samples of another call."""
        for each in self._dropping[op.id]:
            rows = _those(rows, self._stays(op, step, each, rows))
        return rows

    def unmasked(self, op: Op, step: int, rows: Chosen) -> Chosen:
        """Of an update the rows that its loss counts; where it looks at whole groups, those of groups that it counts
        all rows of. Minibatches are made of all prompts, so which are in one does not depend on filters that mask."""
        for each in self._masking.get(op.id, ()):
            stays = self._stays(op, step, each, rows)
            rows = _those(rows, ~np.isin(rows[1], rows[1][~stays]) if keeps_groups_whole(op) else stays)
        return rows

    def step_done(self, step: int) -> None:
        for key in [key for key in self._stay if key[1] <= step]:
            del self._stay[key]

    def _stays(self, op: Op, step: int, filter: str, rows: Chosen) -> npt.NDArray[np.bool_]:
        """Of each row whether the filter has left it; all of them in a step in which it does not fire."""
        stay = self._stay.get((filter, step))
        if stay is None:
            return np.ones(len(rows[0]), dtype=np.bool_)
        same = self._space(self._graph.op(filter)) == self._space(op)
        return np.isin(rows[0], stay[0]) if same else np.isin(rows[1], stay[1])


def _those(rows: Chosen, mine: npt.NDArray[np.bool_]) -> Chosen:
    return rows[0][mine], rows[1][mine], rows[2][mine]
