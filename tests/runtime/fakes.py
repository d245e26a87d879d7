"""Fake ranks: every protocol of backends/contract.py, deterministic and without torch. They compute small numbers from
ids, seeds and one fake weight, so that a lost, repeated or wrongly versioned row changes what comes out.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from flowrl.backends.batch import SAMPLE_ID_BITS, Batch, Ragged
from flowrl.backends.contract import Bytes, Call, RankSetup, Result, TensorSpec
from flowrl.graph.graph import Kind

FAKE_SIZE = 20
"""Rows of a fake data set."""


def fake_number(*parts: object) -> float:
    """In [0, 1), from the text of `parts` alone."""
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2**48


class FakeData:
    def __init__(self, setup: RankSetup) -> None:
        self.size = FAKE_SIZE

    def rows(self, start: int, count: int | None) -> Batch:
        ids = np.arange(start, start + (self.size if count is None else count), dtype=np.int64)
        prompts = tuple(f"prompt {i % self.size}" for i in ids.tolist())
        columns = {"prompt": prompts, "response": prompts, "answer": tuple(i % 7 for i in ids.tolist())}
        return Batch(ids, ids, columns)

    def close(self) -> None:
        return


class FakeGenerator:
    """Tokens of a sample come from (seed, call, sample id) and the weight it holds; 1 to 5 of them."""

    def __init__(self, setup: RankSetup) -> None:
        self.weight = 0.0
        self.version = 0

    def call(self, call: Call, batch: Batch) -> Result:
        n = call.samples_per_prompt
        prompts = np.repeat(batch.ids, n)
        ids = prompts * 2**SAMPLE_ID_BITS + np.tile(np.arange(n), len(batch.ids))
        rows = [self._tokens(call, int(i)) for i in ids]
        responses = tuple(" ".join(map(str, row)) for row in rows)
        tokens = Ragged.of([np.asarray(row) for row in rows], np.int32)
        versions = Ragged(np.full(len(tokens.values), self.version, dtype=np.int32), tokens.lengths)
        columns = {"tokens": tokens, "response": responses, "weight_version": versions}
        length = float(tokens.lengths.mean()) if len(ids) else 0.0
        return Result(Batch(ids, prompts, columns), {"response_tokens": (length, float(len(ids)))})

    def _tokens(self, call: Call, sample: int) -> list[int]:
        length = 1 + int(5 * fake_number(call.seed, call.op.label, sample))
        return [int(1000 * fake_number(call.seed, call.op.label, sample, t, self.weight)) for t in range(length)]

    def read_weights(self, manifest: Sequence[TensorSpec], buffer: Bytes, version: int) -> None:
        spec = manifest[0]
        self.weight = float(buffer[spec.offset : spec.offset + spec.nbytes].view(np.float64)[0])
        self.version = version

    def load(self) -> None:
        return

    def offload(self) -> None:
        return

    def close(self) -> None:
        return


class FakeTrainer:
    """One weight and one momentum, moved by what it is trained on, in the order of ids."""

    def __init__(self, setup: RankSetup) -> None:
        self.weight = 0.0
        self.momentum = 0.0
        self.updates = 0

    def call(self, call: Call, batch: Batch) -> Result:
        if call.op.method == "log_probs":
            tokens = batch.ragged("tokens")
            return Result(
                Batch(batch.ids, batch.prompt_ids, {"old_log_probs": Ragged(tokens.values * 0.5, tokens.lengths)}), {}
            )
        gradient = fake_number(self.weight, [_row(batch, i) for i in range(len(batch))])
        self.momentum = 0.9 * self.momentum + gradient
        self.weight += 0.1 * self.momentum
        self.updates += 1
        return Result(None, {"loss": (gradient, float(len(batch))), "grad_norm": (self.momentum, 1.0)})

    def manifest(self) -> Sequence[TensorSpec]:
        return [TensorSpec("w", "float64", (1,), 8, 8)]

    def write_weights(self, buffer: Bytes) -> None:
        buffer[8:16] = np.asarray([self.weight], dtype=np.float64).view(np.uint8)

    def load(self) -> None:
        return

    def offload(self) -> None:
        return

    def save(self, folder: Path) -> None:
        (folder / "rank-0.json").write_text(json.dumps([self.weight, self.momentum, self.updates]))

    def restore(self, folder: Path) -> None:
        self.weight, self.momentum, self.updates = json.loads((folder / "rank-0.json").read_text())

    def close(self) -> None:
        return


class FakeReward:
    def __init__(self, setup: RankSetup) -> None:
        return

    def call(self, call: Call, batch: Batch) -> Result:
        answers = batch.objects("answer")
        rewards = np.asarray(
            [fake_number(text, answers[i]) for i, text in enumerate(batch.objects("response"))], dtype=np.float32
        )
        mean = float(rewards.mean()) if len(rewards) else 0.0
        return Result(
            Batch(batch.ids, batch.prompt_ids, {"rewards": rewards}), {"rewards": (mean, float(len(rewards)))}
        )

    def close(self) -> None:
        return


class FakeEstimator:
    """Reward minus the mean of its group, once a token."""

    def __init__(self, setup: RankSetup) -> None:
        return

    def call(self, call: Call, batch: Batch) -> Result:
        rewards, tokens = batch.array("rewards"), batch.ragged("tokens")
        _, group, counts = np.unique(batch.prompt_ids, return_inverse=True, return_counts=True)
        means = np.bincount(group, weights=rewards) / counts
        advantages = np.repeat(rewards - means[group], tokens.lengths)
        return Result(Batch(batch.ids, batch.prompt_ids, {"advantages": Ragged(advantages, tokens.lengths)}), {})

    def close(self) -> None:
        return


FAKES = {
    Kind.DATA: FakeData,
    Kind.GENERATOR: FakeGenerator,
    Kind.TRAINER: FakeTrainer,
    Kind.REWARD: FakeReward,
    Kind.ESTIMATOR: FakeEstimator,
}


def make_fake(setup: RankSetup) -> object:
    return FAKES[setup.role.kind](setup)


class Slow:
    """Wraps a fake rank: calls of `method` take `seconds`, and take whatever ends them for a failure of their own."""

    def __init__(self, rank: object, method: str, seconds: float) -> None:
        self._rank = rank
        self._method = method
        self._seconds = seconds

    def __getattr__(self, name: str) -> object:
        return getattr(self._rank, name)

    def call(self, call: Call, batch: Batch) -> Result:
        if call.op.method == self._method:
            try:
                time.sleep(self._seconds)
            except BaseException as error:  # as user code may
                raise ValueError("caught everything") from error
        return self._rank.call(call, batch)  # type: ignore[attr-defined]


def _row(batch: Batch, row: int) -> tuple[object, ...]:
    picked = batch.select([row])
    values = {
        name: column.values.tolist() if isinstance(column, Ragged) else list(column)
        for name, column in sorted(picked.columns.items())
    }
    return int(batch.ids[row]), values
