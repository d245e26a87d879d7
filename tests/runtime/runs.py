"""Running plans with fakes, and comparing what two runs have left."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flowrl.backends.contract import RankSetup
from flowrl.plan.plan import Plan
from flowrl.runtime.launchers.contract import Launcher, Work
from flowrl.runtime.launchers.inline import InlineLauncher
from flowrl.runtime.metrics import TIMING
from flowrl.runtime.result import RunResult
from flowrl.runtime.resume import resume
from flowrl.runtime.run import RunOptions, run
from flowrl.runtime.session import SessionOptions
from tests.runtime.fakes import make_fake

MakeRank = Callable[[RankSetup], object]


class Killed(BaseException):
    """Stands for the end of the process: nothing of ours catches it."""


Dies = Callable[[Work], bool]


class KilledAt(InlineLauncher):
    """Dies before the first piece of work of which `dies` says so."""

    def __init__(self, dies: Dies, make_rank: MakeRank = make_fake) -> None:
        super().__init__(1, make_rank)
        self._dies = dies

    def submit(self, work: Work) -> None:
        if self._dies(work):
            raise Killed
        super().submit(work)


def nth(n: int) -> Dies:
    """The n-th piece of work, from 0, over all stages of a run."""
    left = [n]

    def dies(work: Work) -> bool:
        left[0] -= 1
        return left[0] < 0

    return dies


def at(instruction: str, step: int) -> Dies:
    return lambda work: work.firing.step == step and work.firing.instruction.id == instruction


def with_fakes(make_rank: MakeRank = make_fake, **more: object) -> SessionOptions:
    def launcher(kind: str, threads: int) -> Launcher:
        return InlineLauncher(threads, make_rank)

    return SessionOptions(progress=False, threads=1, make_launcher=launcher, **more)  # type: ignore[arg-type]


def run_fakes(plan: Plan, runs: Path, session: SessionOptions | None = None) -> RunResult:
    return run(plan, RunOptions(runs=runs, session=session or with_fakes()))


def run_killed(plan: Plan, runs: Path, dies: Dies) -> Path | None:
    """Run until `dies` says so; the run folder, or None if it never does."""
    folders: list[Path] = []
    session = SessionOptions(progress=False, threads=1, make_launcher=lambda kind, threads: KilledAt(dies))
    try:
        run(plan, RunOptions(runs=runs, session=session, on_folder=folders.append))
    except Killed:
        return folders[0]
    return None


def resume_fakes(run_folder: Path) -> RunResult:
    return resume(run_folder, session=with_fakes())


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def logs_of(run_folder: Path) -> Mapping[str, list[dict[str, Any]]]:
    """All lines of a run's logs, without what a clock says."""
    found = {name: lines_of(run_folder / name) for name in ("metrics.jsonl", "samples.jsonl", "ledger.jsonl")}
    found["metrics.jsonl"] = [{k: v for k, v in line.items() if k not in TIMING} for line in found["metrics.jsonl"]]
    return found


def trained_state(run_folder: Path, stage: str, step: int) -> object:
    """What the fake trainer had saved."""
    path = run_folder / "checkpoints" / stage / f"step-{step:06d}" / "actor_train" / "rank-0.json"
    return json.loads(path.read_text())
