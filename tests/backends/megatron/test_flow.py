"""One flow of warm-up and GRPO with backend `fsdp`, then with `megatron` on the same tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowrl.backends.batch import Batch
from flowrl.backends.contract import Call, RankSetup, Result
from flowrl.backends.registry import make_rank
from flowrl.graph.graph import Kind
from flowrl.runtime.launchers.contract import Launcher
from flowrl.runtime.launchers.inline import InlineLauncher
from flowrl.runtime.run import RunOptions, run
from flowrl.runtime.session import SessionOptions
from tests.backends.trainers.with_megatron import needs_megatron
from tests.runtime.runs import lines_of
from tests.runtime.tiny_flow import tiny_quickstart

pytestmark = needs_megatron
ROLES = ("stages.0.roles.actor_train.backend=megatron", "stages.1.roles.actor_train.backend=megatron")


class Tape:
    """The rows of a run's generators, call by call; in another run they stand in for its own, which are counted."""

    def __init__(self) -> None:
        self.rows: list[Result] = []
        self.replayed = self.same = 0

    def next(self, own: Result) -> Result:
        kept = self.rows[self.replayed]
        self.replayed += 1
        self.same += np.array_equal(_tokens(own), _tokens(kept))
        return kept


class Taping:
    """A generator that is fed weights and works, and gives what the tape has."""

    def __init__(self, real: Any, tape: Tape, replays: bool) -> None:
        self._real, self._tape, self._replays = real, tape, replays
        self.read_weights, self.load, self.offload = real.read_weights, real.load, real.offload
        self.close = real.close

    def call(self, call: Call, batch: Batch) -> Result:
        own = self._real.call(call, batch)
        if self._replays:
            return self._tape.next(own)
        self._tape.rows.append(own)
        return own


def _tokens(result: Result) -> Any:
    assert result.batch is not None
    return result.batch.ragged("tokens").values


def _run(folder: Path, tape: Tape, *, replays: bool, sets: tuple[str, ...] = ()) -> list[Any]:
    """Metrics by step."""

    def made(setup: RankSetup) -> Any:
        rank = make_rank(setup)
        return Taping(rank, tape, replays) if setup.role.kind is Kind.GENERATOR else rank

    def launcher(kind: str, threads: int) -> Launcher:
        return InlineLauncher(1, made)

    session = SessionOptions(progress=False, threads=1, make_launcher=launcher)
    ran = run(tiny_quickstart(*sets), RunOptions(runs=folder, session=session))
    return lines_of(ran.folder / "metrics.jsonl")


def test_losses_of_one_flow_on_replayed_tokens(tmp_path: Path) -> None:
    tape = Tape()
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    expected = _run(tmp_path / "one", tape, replays=False)
    got = _run(tmp_path / "two", tape, replays=True, sets=ROLES)
    assert len(got) == len(expected) == 7
    losses = [line["actor_train.loss"] for line in expected]
    assert len(set(losses)) == 7
    assert np.abs(np.array([line["actor_train.loss"] for line in got]) - losses).max() < 1e-3
    for one, two in zip(expected, got, strict=True):
        assert set(one) == set(two)
        assert two["actor_train.grad_norm"] == pytest.approx(one["actor_train.grad_norm"], rel=1e-2)
    # The generator was fed by each trainer: from weights that differ by rounding it draws the same tokens.
    assert tape.replayed == len(tape.rows) >= 4
    assert tape.same == tape.replayed
