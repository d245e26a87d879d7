"""Asynchronous training on the real parts, in one process: lag, partial rollouts, resumption, and what is logged.

An oracle that is not the runtime: a plain loop over the ranks that keeps all weights and generates with old ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from flowrl.api.compile import compile_spec
from flowrl.backends.batch import Batch, Column, take
from flowrl.backends.contract import Call
from flowrl.backends.registry import make_rank
from flowrl.graph.graph import Op
from flowrl.plan.plan import Plan
from flowrl.runtime.launchers.contract import Work
from flowrl.runtime.launchers.inline import InlineLauncher
from flowrl.runtime.resume import resume
from flowrl.runtime.run import RunOptions, run
from flowrl.runtime.session import SessionOptions
from flowrl.runtime.setups import model_folders, role_setups
from flowrl.runtime.weights import buffer_bytes
from flowrl.spec import loads
from tests.runtime.async_flow import FLOW, async_plan, run_async
from tests.runtime.runs import Killed, at, lines_of, logs_of

STEPS, LAG = 6, 2
LAGGING = ("run.checkpoint_every_steps=3", f"schedule.max_lag={LAG}")
PARTIAL = ("run.checkpoint_every_steps=3", f"schedule={{max_lag: {LAG}, partial_rollout: true}}")


@pytest.fixture(scope="module")
def lagging(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_async(tmp_path_factory.mktemp("lagging"), *LAGGING)


class Loop:
    """One step after another, on the ranks of a plan, each op fed by hand."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.stage = plan.stages[0]
        setups = role_setups(plan, self.stage, model_folders(plan, self.stage, folder))
        self.ranks: dict[str, Any] = {setup.role: make_rank(setup.ranks[0]) for setup in setups}
        self.trainer = self.ranks["actor_train"]
        self.weights: list[np.ndarray] = [self._weights()]

    def step(self, number: int, lag: int) -> Mapping[str, tuple[float, float]]:
        version = max(0, number - 1 - lag)
        if version:
            self.ranks["actor_infer"].read_weights(self.trainer.manifest(), self.weights[version], version)
        prompts = self.ranks["data.train"].rows(4 * (number - 1), 4)
        made: dict[str, Batch] = {"data.train": prompts}
        metrics: Mapping[str, tuple[float, float]] = {}
        for op in self.stage.graph.ops:
            if op.id in made:
                continue
            result = self.ranks[op.role].call(self._call(op, number), self._inputs(op, made, prompts))
            metrics = result.metrics
            if result.batch is not None:
                made[op.id] = result.batch
        self.weights.append(self._weights())
        return metrics

    def _call(self, op: Op, step: int) -> Call:
        return Call(op, step, self.stage.run.seed, 2, 12, "error", 44)

    def _inputs(self, op: Op, made: Mapping[str, Batch], prompts: Batch) -> Batch:
        rows = prompts if op.method == "generate" else made["actor_infer.generate"]
        columns: dict[str, Column] = {}
        for item in op.inputs:
            if item.source not in made:
                continue
            column = made[item.source].columns[item.field]
            by_prompt = item.source == "data.train" and op.method != "generate"
            columns[item.slot] = take(column, rows.prompt_ids - prompts.ids[0]) if by_prompt else column
        return Batch(rows.ids, rows.prompt_ids, columns)

    def _weights(self) -> np.ndarray:
        buffer = np.zeros(buffer_bytes(self.trainer.manifest()), dtype=np.uint8)
        self.trainer.write_weights(buffer)
        return buffer


def _trained(folder: Path, step: int = STEPS) -> dict[str, torch.Tensor]:
    (file,) = folder.glob(f"checkpoints/*/step-{step:06d}/actor_train/*.safetensors")
    return load_file(file)


def _losses(folder: Path) -> list[tuple[float, float]]:
    lines = [line for line in lines_of(folder / "metrics.jsonl") if not line.get("epilogue")]
    return [(line["actor_train.loss"], line["actor_train.grad_norm"]) for line in lines if line["step"] <= STEPS]


def test_a_lag_is_what_a_plain_loop_makes_of_it(lagging: Path, tmp_path: Path) -> None:
    loop = Loop(async_plan(tmp_path, *LAGGING), tmp_path / "loop")
    metrics = [loop.step(number, LAG) for number in range(1, STEPS + 1)]
    assert _losses(lagging) == [(each["loss"][0], each["grad_norm"][0]) for each in metrics]
    assert len({loss for loss, _ in _losses(lagging)}) == STEPS
    ledger = lines_of(lagging / "ledger.jsonl")
    assert [line["prompts"] for line in ledger] == [[[4 * s, 4 * s + 4]] for s in range(STEPS)]
    lags = [min(s, LAG) for s in range(STEPS)]
    assert [line["version"] - line["made_with"] for line in ledger] == lags
    lines = lines_of(lagging / "metrics.jsonl")[:STEPS]
    assert [line["lag_max"] for line in lines] == [line["lag"] for line in lines] == lags
    assert all(line[f"tokens_at_lag_{lag}"] == 1.0 for lag, line in zip(lags, lines, strict=True))
    differences = [line["actor_train.rollout_log_prob_diff_mean"] for line in lines]
    assert min(differences[1 + LAG :]) > 100 * differences[0], "old log-probs are not those of older weights"


def test_a_lag_on_one_edge_is_the_schedules_for_that_edge(tmp_path: Path) -> None:
    """The same program runs, whichever way it is written."""
    of_schedule = async_plan(tmp_path, "schedule.max_lag=1").stages[0].programs
    lagging = FLOW.replace("- actor_train => actor_infer", "- {edge: actor_train => actor_infer, max_lag: 1}")
    assert compile_spec(loads(lagging, folder=str(tmp_path))).stages[0].programs == of_schedule
    assert async_plan(tmp_path).stages[0].programs != of_schedule


def test_the_asynchronous_flow_at_lag_0_is_the_synchronous_one(tmp_path: Path) -> None:
    """Of one flow: with a schedule on pools of their own, and without one on a pool for both."""
    apart = run_async(tmp_path / "apart", "schedule={max_lag: 0, when_stale: drop}")
    pools = "placement.pools={all: {gpus: 1, roles: [actor_train, actor_infer]}}"
    together = run_async(tmp_path / "together", pools)
    assert _losses(apart) == _losses(together)
    mine, theirs = _trained(apart), _trained(together)
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in mine.items())


class _KilledAt(InlineLauncher):
    def submit(self, work: Work) -> None:
        if at("run actor_train.update", 5)(work):
            raise Killed
        super().submit(work)


def _killed(folder: Path, *sets: str) -> Path:
    folders: list[Path] = []
    session = SessionOptions(progress=False, threads=1, make_launcher=lambda kind, threads: _KilledAt(1))
    options = RunOptions(runs=folder / "runs", folder=folder, session=session, on_folder=folders.append)
    with pytest.raises(Killed):
        run(async_plan(folder, *sets), options)
    return folders[0]


def test_a_run_at_a_lag_is_resumed_bit_equal(lagging: Path, tmp_path: Path) -> None:
    folder = _killed(tmp_path, *LAGGING)
    resume(folder, session=SessionOptions(progress=False, threads=1))
    assert logs_of(folder) == logs_of(lagging)
    mine, theirs = _trained(folder), _trained(lagging)
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in mine.items())


def _prompts(folder: Path) -> list[int]:
    runs = [run for line in lines_of(folder / "ledger.jsonl") for run in line["prompts"]]
    return [prompt for start, stop in runs for prompt in range(start, stop)]


def test_a_partial_rollout_trains_on_each_prompt_once_within_its_lag(tmp_path: Path) -> None:
    steps = 8
    folder = run_async(tmp_path, *PARTIAL, f"run.steps={steps}")
    assert sorted(_prompts(folder)) == list(range(4 * steps))
    ledger = lines_of(folder / "ledger.jsonl")
    assert [line["samples"] for line in ledger] == [8] * steps
    assert all(0 <= line["version"] - line["made_with"] <= LAG for line in ledger)
    assert all(line["made_with"] <= line["newest"] < line["step"] for line in ledger)
    lines = lines_of(folder / "metrics.jsonl")[:steps]
    shares = [[value for name, value in line.items() if name.startswith("tokens_at_lag_")] for line in lines]
    assert all(sum(each) == pytest.approx(1.0) for each in shares)
    assert all(line["lag"] <= line["lag_max"] <= LAG for line in lines)
    _assert_stretches([line for line in lines_of(folder / "samples.jsonl") if "versions" in line])


def _assert_stretches(mixed: list[dict[str, Any]]) -> None:
    """Where samples went on under newer weights."""
    assert mixed, "no sample was interrupted"
    for line in mixed:
        versions, tokens = zip(*line["versions"], strict=True)
        assert list(versions) == sorted(set(versions))
        assert versions[0] == line["version"]
        assert sum(tokens) == line["response_tokens"]


def test_a_partial_rollout_that_was_stopped_goes_on_and_loses_no_prompt(tmp_path: Path) -> None:
    folder = _killed(tmp_path, *PARTIAL)
    resume(folder, session=SessionOptions(progress=False, threads=1))
    assert sorted(_prompts(folder)) == list(range(4 * STEPS))
    assert all(line["version"] - line["made_with"] <= 2 for line in lines_of(folder / "ledger.jsonl"))


def test_what_becomes_too_old_is_dropped_and_counted(tmp_path: Path) -> None:
    """Of 24 prompts those that are not trained on are the ones that metrics say were dropped."""
    folder = run_async(tmp_path, "schedule={max_lag: 2, partial_rollout: true, when_stale: drop}", "run.steps=8")
    trained = _prompts(folder)
    dropped = sum(line.get("stale_prompts", 0) for line in lines_of(folder / "metrics.jsonl"))
    assert len(set(trained)) == len(trained)
    assert len(trained) + dropped == 4 * 8
    assert all(line["version"] - line["made_with"] <= 2 for line in lines_of(folder / "ledger.jsonl"))
    assert dropped > 0, "nothing was long enough"
