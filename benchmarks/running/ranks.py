"""Ranks that do next to nothing, for measuring what the runtime takes beside the work. Shipped to Ray by value.

They make rows of the sizes they are told, with the columns that the flow reads. No torch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flowrl.backends.batch import SAMPLE_ID_BITS, Batch, Ragged
from flowrl.backends.contract import Bytes, Call, RankSetup, Result, TensorSpec
from flowrl.graph.graph import Kind

ROWS = 4096
"""Of a data set."""


class Idle:
    """What every rank can: nothing, at once."""

    def load(self) -> None: ...

    def offload(self) -> None: ...

    def close(self) -> None: ...

    def manifest(self) -> Sequence[TensorSpec]:
        return [TensorSpec("w", "float32", (16,), 0, 64)]

    def write_weights(self, buffer: Bytes) -> None:
        buffer[:64] = 1

    def read_weights(self, manifest: Sequence[TensorSpec], buffer: Bytes, version: int) -> None: ...

    def save(self, folder: Any) -> None: ...

    def restore(self, folder: Any) -> None: ...


class Rows(Idle):
    size = ROWS

    def rows(self, start: int, count: int | None) -> Batch:
        ids = np.arange(start, start + (self.size if count is None else count), dtype=np.int64)
        texts = tuple("2+2=" for _ in ids)
        return Batch(ids, ids, {"prompt": texts, "answer": texts})


class Samples(Idle):
    """Samples of exactly `tokens` tokens, each made in `seconds`."""

    def __init__(self, tokens: int, seconds: float) -> None:
        self._tokens, self._seconds = tokens, seconds

    def call(self, call: Call, batch: Batch) -> Result:
        time.sleep(self._seconds)
        prompts = np.repeat(batch.ids, call.samples_per_prompt)
        ids = prompts * 2**SAMPLE_ID_BITS + np.tile(np.arange(call.samples_per_prompt), len(batch.ids))
        lengths = np.full(len(ids), self._tokens, dtype=np.int64)
        count = int(lengths.sum())
        columns = {
            "tokens": Ragged(np.ones(count, dtype=np.int32), lengths),
            "loss_mask": Ragged(np.ones(count, dtype=np.bool_), lengths),
            "rollout_log_probs": Ragged(np.zeros(count, dtype=np.float32), lengths),
            "response": tuple("four " * self._tokens for _ in ids),
        }
        return Result(Batch(ids, prompts, columns), {})


class Rewards(Idle):
    def call(self, call: Call, batch: Batch) -> Result:
        return Result(
            Batch(batch.ids, batch.prompt_ids, {"rewards": np.zeros(len(batch), dtype=np.float32)}),
            {"rewards": (0.0, float(len(batch)))},
        )


class Advantages(Idle):
    def call(self, call: Call, batch: Batch) -> Result:
        mask = batch.ragged("loss_mask")
        column = Ragged(np.zeros(len(mask.values), dtype=np.float32), mask.lengths)
        return Result(Batch(batch.ids, batch.prompt_ids, {"advantages": column}), {})


class Trainer(Idle):
    """Looks at what it is given, as an update does."""

    def call(self, call: Call, batch: Batch) -> Result:
        seen = float(batch.ragged("tokens").values.sum())
        return Result(None, {"loss": (0.0, 1.0), "seen": (seen, 1.0)})


def maker(tokens: int, seconds: float = 0.0) -> Callable[[RankSetup], object]:
    """Makes ranks: samples of `tokens` tokens; a call of the generator takes `seconds`."""

    def make(setup: RankSetup) -> object:
        if setup.role.kind is Kind.GENERATOR:
            return Samples(tokens, seconds)
        return {Kind.DATA: Rows, Kind.TRAINER: Trainer, Kind.REWARD: Rewards, Kind.ESTIMATOR: Advantages}[
            setup.role.kind
        ]()

    return make
