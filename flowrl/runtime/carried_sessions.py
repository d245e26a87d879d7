"""A session on one rank that goes on from step to step: prompts join it, takes gather those that are done.

Takes a rank of any backend. One that can carry (backends/contract.py, Carrying) is paused between two tokens while
weights come in; any other makes whole responses when prompts join: right, only that nothing is interrupted.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from flowrl.backends.batch import Batch, Ragged, join
from flowrl.backends.carried import Groups, without
from flowrl.backends.contract import Call, Gather, Metrics, Rank, Result


class CarriedSession:
    def __init__(self, rank: Any) -> None:
        self._rank = rank
        self._carries = hasattr(rank, "join") and hasattr(rank, "gather")
        self._groups: Groups[int] = Groups()
        self._made: dict[int, Batch] = {}
        """Rows of prompts that were made whole, by prompt."""
        self._empty: Batch | None = None
        self._metrics: Metrics = {}

    def join(self, call: Call, batch: Batch) -> None:
        """Prompts to work on; `call.joins` says whether others are under way."""
        if self._carries:
            self._rank.join(call, batch, afresh=not call.joins)
            return
        if not call.joins:
            self._groups, self._made = Groups(), {}
        result = cast("Rank", self._rank).call(call, batch)
        self._metrics = result.metrics
        if result.batch is None:
            return
        self._empty = result.batch.select([])
        for prompt in np.unique(result.batch.prompt_ids).tolist():
            rows = result.batch.select(np.flatnonzero(result.batch.prompt_ids == prompt))
            self._made[prompt] = rows
            self._groups.add(prompt, [prompt])
            self._groups.finish(prompt)

    def gather(self, gather: Gather) -> Result:
        """Rows of whole prompts, ids in ascending order."""
        if self._carries:
            return cast("Result", self._rank.gather(gather))
        metrics, self._metrics = self._metrics, {}
        if self._empty is None:
            return Result(None, metrics)
        dropped = self._groups.too_old(gather, self._version)
        self._groups.pop(dropped)
        prompts = self._groups.choice(without(gather, dropped)) or ()
        self._groups.pop(prompts)
        given = [self._made.pop(prompt) for prompt in prompts]
        for prompt in dropped:
            del self._made[prompt]
        return Result(join(given) if given else self._empty, metrics, dropped)

    def pause(self) -> None:
        if self._carries:
            self._rank.pause()

    def resume(self) -> None:
        if self._carries:
            self._rank.resume()

    def _version(self, prompt: int) -> int | None:
        """Of the oldest token of a prompt's rows."""
        tags = self._made[prompt].columns.get("weight_version")
        return int(tags.values.min()) if isinstance(tags, Ragged) and len(tags.values) else None
