"""A process that runs a fake plan until a signal ends it.

    python -m tests.runtime.interrupted RUNS METHOD SECONDS [EVERY]

Every call of METHOD takes SECONDS; a checkpoint is written every EVERY steps (only at the end). Prints the op of step 2
that begins.
"""

from __future__ import annotations

import sys
from pathlib import Path

from flowrl.backends.contract import RankSetup
from flowrl.plan.plan import StageRun
from flowrl.runtime.interrupts import InterruptError
from flowrl.runtime.launchers.contract import Work
from flowrl.runtime.launchers.inline import InlineLauncher
from flowrl.runtime.run import RunOptions, run
from flowrl.runtime.session import SessionOptions
from tests.runtime.fakes import Slow, make_fake
from tests.runtime.plans import grpo_graph, make_plan, stage_plan


class Telling(InlineLauncher):
    def submit(self, work: Work) -> None:
        if work.firing.step == 2 and work.firing.instruction.op in ("actor_infer.generate", "actor_train.update"):
            say(work.firing.instruction.op)
        super().submit(work)


def say(line: str | None) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(runs: Path, method: str, seconds: float, every: int | None) -> int:
    def slow(setup: RankSetup) -> object:
        return Slow(make_fake(setup), method, seconds)

    plan = make_plan(
        stage_plan(grpo_graph(val_every=None), run=StageRun(steps=50, checkpoint_every_steps=every, loggers=()))
    )
    session = SessionOptions(progress=False, make_launcher=lambda kind, threads: Telling(threads, slow))
    try:
        run(plan, RunOptions(runs=runs, session=session))
    except InterruptError as error:
        say(f"{error.diagnostics[0].code} {error.diagnostics[0].why}")
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]), int(sys.argv[4]) if sys.argv[4:] else None))
