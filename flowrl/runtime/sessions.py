"""A session on one rank: an op that is opened on all of its rows, which are then taken in parts.

Takes a rank of any backend. One that can stream (backends/contract.py, Streaming) works on while parts are taken; of
any other the first take waits for the whole call, and the rows are given out in the order of their ids: right, only
slower.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from flowrl.backends.batch import Batch, IntArray
from flowrl.backends.contract import Call, Metrics, Rank, Result


class Session:
    def __init__(self, rank: Any, call: Call, batch: Batch, given: IntArray | None = None) -> None:
        """`given`: ids of rows that an earlier session on the same rows, whose rank was lost, has given already."""
        self._rank, self._call, self._batch, self._before = rank, call, batch, given
        self._streams = hasattr(rank, "open") and hasattr(rank, "take")
        self._made: Batch | None = None
        self._metrics: Metrics | None = None
        self._given = 0
        if self._streams:
            rank.open(call, batch)

    def take(self, number: int, parts: int, *, by_prompt: bool) -> Result:
        """Rows that have not been given, until `number` of `parts` parts have been, rounded down: of the rows, or with
        `by_prompt` of the prompts, each with all its samples. A session that was opened again counts those that an
        earlier one has given, and leaves them out: its takes may be larger, and smaller later on."""
        result = self._take(number, parts, by_prompt)
        if result.batch is None or self._before is None:
            return result
        new = np.flatnonzero(~np.isin(result.batch.ids, self._before))
        return Result(result.batch.select(new), result.metrics)

    def _take(self, number: int, parts: int, by_prompt: bool) -> Result:
        if self._streams:
            return cast("Result", self._rank.take(number, parts, by_prompt=by_prompt))
        metrics: Metrics = {}
        if self._metrics is None:
            result = cast("Rank", self._rank).call(self._call, self._batch)
            self._made, self._metrics = result.batch, result.metrics
            metrics = result.metrics if self._before is None else {}
        if self._made is None:
            return Result(None, metrics)
        until = _rows_until(self._made, number, parts, by_prompt)
        places = np.arange(self._given, until)
        self._given = until
        return Result(self._made.select(places), metrics)


def _rows_until(made: Batch, number: int, parts: int, by_prompt: bool) -> int:
    """Rows of `made`, which are in the order of their ids and so of their prompts, that so many parts have."""
    if number == parts:
        return len(made)
    if not by_prompt:
        return len(made) * number // parts
    prompts = np.unique(made.prompt_ids)
    reached = len(prompts) * number // parts
    return int(np.searchsorted(made.prompt_ids, prompts[reached])) if len(prompts) else 0
