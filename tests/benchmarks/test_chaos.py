"""What the chaos benchmark draws, and that it sees a ledger that does not balance and runs that differ."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from benchmarks.chaotic.outcome import compared
from benchmarks.chaotic.scenarios import ROLES, SCENARIOS
from benchmarks.chaotic.strikes import drawn
from flowrl.graph.graph import Kind

STEPS = 2
SCENARIO = SCENARIOS["ppo/critic"]


def test_every_kind_of_worker_is_struck() -> None:
    graph = SCENARIO.plan(STEPS).stages[0].graph
    struck = {graph.role(role).kind for role in ROLES}
    assert struck == {role.kind for role in graph.roles}
    assert {Kind.TRAINER, Kind.GENERATOR, Kind.SCORER, Kind.REWARD, Kind.ESTIMATOR, Kind.DATA} <= struck
    assert {role for role in ROLES if graph.role(role).kind is Kind.TRAINER} == {"actor_train", "critic"}


def test_points_come_of_the_seed() -> None:
    one = drawn(SCENARIO, 1, 30, 10)
    assert one == drawn(SCENARIO, 1, 30, 10)
    assert one != drawn(SCENARIO, 2, 30, 10)
    assert [strike.signal for strike in one].count(signal.SIGSTOP) == 2
    assert len(one) == 10
    assert all(1 <= strike.step < 30 for strike in one)
    assert [strike.step for strike in one] == sorted(strike.step for strike in one)


def _run(folder: Path) -> Path:
    """A run of two steps of four prompts with three samples, as its folder has it."""
    run = folder / "runs" / "struck-1"
    saved = run / "checkpoints" / "ppo" / f"step-{STEPS:06d}" / "critic"
    saved.mkdir(parents=True)
    save_file({"w": torch.zeros(3)}, saved / "rank-0.safetensors")
    ledger = [
        {"step": s, "prompts": [[4 * s - 4, 4 * s]], "samples": 12, "version": s - 1, "made_with": s - 1}
        for s in (1, 2)
    ]
    _write(run / "ledger.jsonl", ledger)
    _write(run / "metrics.jsonl", [{"step": 1, "seconds": 1.0, "loss": 0.5}])
    _write(run / "samples.jsonl", [])
    (run / "run.json").write_text('{"state": "finished"}')
    return run


def _write(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("nothing", None),
        ("seconds", None),
        ("a prompt twice", "ledger"),
        ("a sample lost", "ledger"),
        ("an old sample", "lag"),
        ("a metric", "equal"),
        ("a weight", "equal"),
        ("no checkpoint", "equal"),
        ("not finished", "state"),
    ],
)
def test_what_differs_is_seen(tmp_path: Path, change: str, named: str | None) -> None:
    whole = _run(tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "struck")
    run = tmp_path / "struck" / "runs" / "struck-1"
    _spoil(run, change)
    found = compared(SCENARIO, whole, run.parent, STEPS)
    assert found["passed"] == (named is None)
    right = {"ledger": "balanced", "lag": 0, "equal": "yes", "state": "finished"}
    if named is None:
        assert {key: found[key] for key in right} == right
    else:
        assert found[named] != right[named]


def _spoil(run: Path, change: str) -> None:
    ledger = [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]
    tensors = next(run.glob("checkpoints/*/*/critic/*.safetensors"))
    if change == "seconds":
        _write(run / "metrics.jsonl", [{"step": 1, "seconds": 9.0, "loss": 0.5, "ranks_lost": 1}])
    elif change == "a prompt twice":
        _write(run / "ledger.jsonl", [ledger[0], ledger[1] | {"prompts": [[0, 4]]}])
    elif change == "a sample lost":
        _write(run / "ledger.jsonl", [ledger[0], ledger[1] | {"samples": 11}])
    elif change == "an old sample":
        _write(run / "ledger.jsonl", [ledger[0], ledger[1] | {"made_with": 0}])
    elif change == "a metric":
        _write(run / "metrics.jsonl", [{"step": 1, "seconds": 1.0, "loss": 0.25}])
    elif change == "a weight":
        save_file({"w": torch.tensor([0.0, 0.0, 1e-7])}, tensors)
    elif change == "no checkpoint":
        tensors.unlink()
    elif change == "not finished":
        (run / "run.json").write_text('{"state": "failed"}')
