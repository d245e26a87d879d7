"""One flow of GRPO with trainer and reference on backend `fsdp`, then on `megatron` with the same tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowrl.api.compile import compile_spec
from flowrl.backends.batch import Batch
from flowrl.backends.contract import Call, RankSetup, Result
from flowrl.backends.registry import make_rank
from flowrl.graph.graph import Kind
from flowrl.runtime.launchers.contract import Launcher
from flowrl.runtime.launchers.inline import InlineLauncher
from flowrl.runtime.run import RunOptions, run
from flowrl.runtime.session import SessionOptions
from flowrl.spec import load
from tests.backends.trainers.with_megatron import needs_megatron
from tests.runtime.invariant_flows import OVER, REWARD
from tests.runtime.runs import lines_of

pytestmark = needs_megatron
STEPS, UPDATES = 4, 2
FLOW = f"""flowrl: 1
name: grpo
use: grpo
step: {{prompts: 4, samples_per_prompt: 3, updates: {UPDATES}}}
roles:
  actor_infer: {{backend: hf, generate: {{max_response_tokens: 6}}}}
  actor_train: {{backend: BACKEND, optimizer: {{lr: 3.0e-3}}}}
  reference: {{backend: BACKEND}}
  {REWARD}
{OVER}placement: {{pools: {{all: {{gpus: 1, roles: [actor_train, actor_infer, reference]}}}}}}
"""


class Tape:
    """The rows of a run's generators, call by call; in another run they stand in for its own, which are counted."""

    def __init__(self) -> None:
        self.rows: list[Result] = []
        self.replayed = self.same = 0

    def next(self, own: Result) -> Result:
        kept = self.rows[self.replayed]
        self.replayed += 1
        self.same += sum(np.array_equal(*pair) for pair in zip(_tokens(own), _tokens(kept), strict=True))
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


def _tokens(result: Result) -> list[Any]:
    assert result.batch is not None
    return result.batch.ragged("tokens").rows()


def _run(folder: Path, backend: str, tape: Tape, *, replays: bool) -> list[Any]:
    """Metrics of each step."""

    def made(setup: RankSetup) -> Any:
        rank = make_rank(setup)
        return Taping(rank, tape, replays) if setup.role.kind is Kind.GENERATOR else rank

    def launcher(kind: str, threads: int) -> Launcher:
        return InlineLauncher(1, made)

    session = SessionOptions(progress=False, threads=1, make_launcher=launcher)
    path = folder / f"{backend}.yaml"
    path.write_text(FLOW.replace("BACKEND", backend))
    ran = run(compile_spec(load(path)), RunOptions(runs=folder, session=session))
    return lines_of(ran.folder / "metrics.jsonl")


def test_losses_of_one_flow_on_replayed_tokens(tmp_path: Path) -> None:
    tape = Tape()
    expected = _run(tmp_path, "fsdp", tape, replays=False)
    got = _run(tmp_path, "megatron", tape, replays=True)
    assert len(got) == len(expected) == STEPS
    losses = [line["actor_train.loss"] for line in expected]
    assert len(set(losses)) == STEPS
    assert np.abs(np.array([line["actor_train.loss"] for line in got]) - losses).max() < 1e-3
    for one, two in zip(expected, got, strict=True):
        assert set(one) == set(two)
        assert one["actor_train.grad_norm"] > 0
        assert two["actor_train.grad_norm"] == pytest.approx(one["actor_train.grad_norm"], rel=1e-2)
    # The generator was fed by either trainer: from weights that differ by rounding it draws the same tokens.
    assert tape.replayed == len(tape.rows) == STEPS
    assert tape.same > 0.9 * STEPS * 12
