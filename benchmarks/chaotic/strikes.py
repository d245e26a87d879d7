"""Strikes: where a process is killed or stopped, drawn from a seed, and a launcher that carries them out."""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.chaotic.scenarios import Scenario
from flowrl.diag.diagnostic import FlowError
from flowrl.runtime.launchers.contract import Work
from flowrl.runtime.launchers.ray import RayLauncher
from flowrl.runtime.run import RunOptions, run
from flowrl.runtime.session import SessionOptions

HUNG_SECONDS = 15.0
STOP_EVERY = 5
"""One strike in so many is SIGSTOP, which Ray does not notice."""
MOST_DELAY_SECONDS = 0.3
WAIT_SECONDS = 600.0
"""For a process that has not been struck."""


@dataclass(frozen=True, slots=True)
class Strike:
    """`delay` seconds after the `nth` piece of work of `step` is submitted, whoever's it is, the rank with that share
    of the role's ranks gets the signal."""

    step: int
    nth: int
    delay: float
    share: float
    signal: signal.Signals


def drawn(scenario: Scenario, seed: int, steps: int, points: int) -> list[Strike]:
    """Points in order of steps; not in the last step, after which nobody may need the process any more."""
    dice = random.Random(f"{scenario.name}/{seed}")
    works = len(scenario.plan(steps).stages[0].programs.instructions)
    return sorted(
        (
            Strike(
                step=dice.randint(1, steps - 1),
                nth=dice.randrange(works // 2),
                delay=dice.uniform(0.0, MOST_DELAY_SECONDS),
                share=dice.random(),
                signal=signal.SIGSTOP if number % STOP_EVERY == STOP_EVERY - 1 else signal.SIGKILL,
            )
            for number in range(points)
        ),
        key=lambda strike: (strike.step, strike.nth, strike.delay),
    )


class Striking(RayLauncher):
    """Strikes each point once, however often a step is made."""

    def __init__(self, threads: int, role: str, strikes: list[Strike]) -> None:
        super().__init__(threads, hung_seconds=HUNG_SECONDS)
        self._role, self._left = role, list(strikes)
        self._submitted: dict[int, int] = {}
        self.struck: list[dict[str, Any]] = []
        self._lock = threading.Lock()

    def submit(self, work: Work) -> None:
        super().submit(work)
        step = work.firing.step
        self._submitted[step] = self._submitted.get(step, 0) + 1
        due = [s for s in self._left if s.step < step or (s.step == step and s.nth < self._submitted[step])]
        for strike in due:
            self._left.remove(strike)
            timer = threading.Timer(strike.delay, self._strike, (strike, work.firing.instruction.id))
            timer.daemon = True
            timer.start()

    def _strike(self, strike: Strike, at: str) -> None:
        """No process is struck twice: one that has been and is not replaced yet is waited for."""
        end = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < end:
            with suppress(Exception), self._lock:
                pids = self.processes(self._role)
                pid = pids[int(strike.share * len(pids))]
                if all(pid != one["pid"] for one in self.struck):
                    os.kill(pid, strike.signal)
                    self.struck.append({"step": strike.step, "at": at, "signal": strike.signal.name, "pid": pid})
                    return
            time.sleep(0.05)


def run_struck(scenario: Scenario, runs: Path, steps: int, strikes: list[Strike]) -> dict[str, Any]:
    """Run the scenario under its strikes; what became of it."""
    made: list[Striking] = []

    def launcher(kind: str, threads: int) -> Striking:
        made.append(Striking(1, scenario.role, strikes))
        return made[-1]

    began, error = time.monotonic(), ""
    session = SessionOptions(progress=False, threads=1, make_launcher=launcher, replacements=len(strikes))
    try:
        run(scenario.plan(steps), RunOptions(runs=runs, name="struck", launcher="ray", session=session))
    except FlowError as failed:
        error = "; ".join(f"{each.code}: {each.why}" for each in failed.diagnostics)
    losses = losses_of(next(runs.iterdir()))
    return {
        "struck": sum(len(each.struck) for each in made),
        "replaced": len(losses),
        "rolled_back": sum("rolled_back_to" in loss for loss in losses),
        "recovery_seconds": statistics.median([loss["seconds"] for loss in losses] or [0.0]),
        "seconds": time.monotonic() - began,
        "completed": not error,
        "error": error,
    }


def losses_of(run_folder: Path) -> list[dict[str, Any]]:
    path = run_folder / "faults.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
