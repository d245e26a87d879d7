"""Records are freed when their last reader is done: what a run holds does not grow with its steps."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from flowrl.backends.batch import Batch
from flowrl.plan.plan import StageRun
from flowrl.runtime.launchers.contract import Work
from flowrl.runtime.launchers.inline import InlineLauncher
from flowrl.runtime.session import SessionOptions
from tests.runtime.fakes import make_fake
from tests.runtime.plans import grpo_graph, make_plan, stage_plan
from tests.runtime.runs import run_fakes


@pytest.mark.parametrize("max_lag", [0, 1])
def test_the_batches_alive_do_not_grow(tmp_path: Path, max_lag: int) -> None:
    alive: dict[int, int] = {}
    before = _batches()

    class Counting(InlineLauncher):
        def submit(self, work: Work) -> None:
            super().submit(work)
            if work.firing.instruction.op == "actor_train.update" and work.firing.step in (5, 40):
                alive[work.firing.step] = _batches() - before

    session = SessionOptions(progress=False, make_launcher=lambda kind, threads: Counting(threads, make_fake))
    graph = grpo_graph(max_lag=max_lag, val_every=5)
    run_fakes(make_plan(stage_plan(graph, run=StageRun(steps=41, loggers=()))), tmp_path, session)
    assert alive[40] <= alive[5]
    assert alive[40] < 15


def _batches() -> int:
    gc.collect()
    return sum(type(thing) is Batch for thing in gc.get_objects())
