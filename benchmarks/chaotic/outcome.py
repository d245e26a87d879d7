"""What a struck run is compared by: the ledger against the plan, and everything against the undisturbed run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from benchmarks.chaotic.scenarios import PROMPTS, SAMPLES, Scenario
from flowrl.runtime.launchers.ray import RayLauncher
from flowrl.runtime.metrics import TIMING
from flowrl.runtime.run import RunOptions, run
from flowrl.runtime.session import SessionOptions

Outcome = dict[str, Any]


def undisturbed(scenario: Scenario, keep: Path, steps: int) -> Path:
    """The run folder of the same flow that nobody strikes; made once and kept."""
    runs = keep / f"whole-{scenario.flow}-{steps}"
    done = [folder for folder in runs.glob("whole-*") if _state(folder) == "finished"]
    if done:
        return done[0]
    session = SessionOptions(progress=False, threads=1, make_launcher=lambda kind, threads: RayLauncher(1))
    return run(scenario.plan(steps), RunOptions(runs=runs, name="whole", launcher="ray", session=session)).folder


def compared(scenario: Scenario, whole: Path, runs: Path, steps: int) -> Outcome:
    folder = next(runs.iterdir())
    ledger = _lines(folder / "ledger.jsonl")
    lags = [line["version"] - line["made_with"] for line in ledger]
    logs = ("metrics.jsonl", "samples.jsonl", "ledger.jsonl")
    differs = [name for name in logs if _lines(folder / name) != _lines(whole / name)]
    differs += _tensors_that_differ(folder, whole, steps)
    lag = max(lags, default=0)
    result: Outcome = {
        "ledger": "balanced" if _balanced(ledger, steps) else "NOT balanced",
        "lag": lag,
        "max_lag": scenario.max_lag,
        "equal": "yes" if not differs else "NO: " + ", ".join(differs),
        "state": _state(folder),
    }
    right = result["ledger"] == "balanced" and lag <= scenario.max_lag and not differs
    return result | {"passed": right and result["state"] == "finished"}


def _balanced(ledger: list[dict[str, Any]], steps: int) -> bool:
    """Each step trained once, on the next prompts of the data set and on all their samples."""
    wanted = [(step, [[PROMPTS * (step - 1), PROMPTS * step]], PROMPTS * SAMPLES) for step in range(1, steps + 1)]
    return [(line["step"], line["prompts"], line["samples"]) for line in ledger] == wanted


def _tensors_that_differ(folder: Path, whole: Path, steps: int) -> list[str]:
    """Tensors of the last checkpoint that are not equal, bit for bit: weights and the optimizer's."""
    name = f"step-{steps:06d}"
    files = sorted(path.relative_to(whole) for path in whole.glob(f"checkpoints/*/{name}/**/*.safetensors"))
    if not files:
        return ["no checkpoint"]
    found: list[str] = []
    for file in files:
        if not (folder / file).exists():
            found.append(str(file))
            continue
        mine, theirs = load_file(folder / file), load_file(whole / file)
        found += [f"{file.parent.name}/{key}" for key in theirs if not torch.equal(mine[key], theirs[key])]
    return found[:5]


def _lines(path: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in TIMING} for line in lines]


def _state(folder: Path) -> str:
    return str(json.loads((folder / "run.json").read_text())["state"])
