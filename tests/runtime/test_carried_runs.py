"""Runs of fakes whose sessions go on from step to step: stopped, lost and resumed anywhere, each prompt is trained on
once and no sample is older than allowed. A backend that cannot pause makes whole responses, with the same promise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from flowrl.backends.batch import Batch, Ragged
from flowrl.backends.contract import Bytes, Call, Gather, RankSetup, Result, TensorSpec
from flowrl.backends.generators.rollouts import Rollout, Rollouts
from flowrl.graph.graph import Kind, Schedule
from flowrl.plan.plan import Plan, StageRun
from flowrl.runtime.resume import resume
from flowrl.runtime.run import RunOptions, run
from flowrl.runtime.session import SessionOptions
from tests.runtime.fakes import FakeGenerator, fake_number, make_fake
from tests.runtime.losing import AFTER, BEFORE, Losing, losing
from tests.runtime.plans import grpo_graph, make_plan, split, stage_plan
from tests.runtime.runs import Dies, Killed, KilledAt, at, lines_of, nth, run_fakes, with_fakes

STEPS, PROMPTS, LAG = 5, 4, 2


class Gradual(FakeGenerator):
    """One token of each response at a time, 1 to 30 of them, mostly few. Notices weights that come while it works."""

    def __init__(self, setup: RankSetup) -> None:
        super().__init__(setup)
        self.rollouts = Rollouts()
        self.paused = False

    def join(self, call: Call, batch: Batch, *, afresh: bool) -> None:
        if afresh:
            self.rollouts = Rollouts()
        ids = [prompt * 2**16 + n for prompt in batch.ids.tolist() for n in range(call.samples_per_prompt)]
        lengths = [1 + int(30 * fake_number("length", id) ** 4) for id in ids]
        self.rollouts.join([Rollout(id, [], length) for id, length in zip(ids, lengths, strict=True)])

    def gather(self, gather: Gather) -> Result:
        assert not self.paused
        left, dropped, _ = self.rollouts.drop(gather)
        while not self.rollouts.has(left) and (going := self.rollouts.going()):
            for each in going:
                each.response.append(int(1000 * fake_number(each.id, len(each.response), self.weight)))
                each.versions.append(self.version)
                if len(each.response) == each.limit:
                    self.rollouts.finish(each, 0)
        taken = self.rollouts.take(left)
        ids = np.asarray([each.id for each in taken], dtype=np.int64)
        columns = {
            "tokens": Ragged.of([np.asarray(each.response) for each in taken], np.int32),
            "response": tuple(" ".join(map(str, each.response)) for each in taken),
            "weight_version": Ragged.of([np.asarray(each.versions) for each in taken], np.int32),
        }
        return Result(Batch(ids, ids >> 16, columns), {"response_tokens": (1.0, float(len(ids)))}, dropped)

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def read_weights(self, manifest: list[TensorSpec], buffer: Bytes, version: int) -> None:  # type: ignore[override]
        assert self.paused or not self.rollouts.going()
        super().read_weights(manifest, buffer, version)


def gradual(setup: RankSetup) -> object:
    return Gradual(setup) if setup.role.kind is Kind.GENERATOR else make_fake(setup)


def plan_of(when_stale: str = "wait", takes: int = 1, steps: int = STEPS) -> Plan:
    graph = grpo_graph(max_lag=LAG, val_every=None)
    schedule = Schedule(max_lag=LAG, partial_rollout=True, when_stale=when_stale, takes=takes)
    graph = structs.replace(graph, schedule=schedule)
    run_ = StageRun(steps=steps, checkpoint_every_steps=2, loggers=(), samples_logged=2)
    return make_plan(stage_plan(graph, split(graph), run_))


def assert_balanced(folder: Path, steps: int = STEPS, dropped: int = 0) -> None:
    ledger = lines_of(folder / "ledger.jsonl")
    prompts = [prompt for line in ledger for start, stop in line["prompts"] for prompt in range(start, stop)]
    assert len(prompts) == len(set(prompts)) == PROMPTS * steps - dropped
    assert set(prompts) <= set(range(PROMPTS * steps))
    assert [line["step"] for line in ledger] == list(range(1, steps + 1))
    assert all(0 <= line["version"] - line["made_with"] <= LAG for line in ledger)
    assert dropped or all(line["samples"] == 3 * PROMPTS for line in ledger)


def went_on(folder: Path) -> bool:
    return any(line["made_with"] < line["newest"] for line in lines_of(folder / "ledger.jsonl"))


@pytest.mark.parametrize("takes", [1, 2])
@pytest.mark.parametrize("make_rank", [gradual, make_fake])
def test_each_prompt_is_trained_on_once(tmp_path: Path, make_rank: object, takes: int) -> None:
    folder = run_fakes(plan_of(takes=takes), tmp_path, with_fakes(make_rank)).folder  # type: ignore[arg-type]
    assert_balanced(folder)
    assert went_on(folder) is (make_rank is gradual)


def test_what_is_dropped_is_what_is_missing(tmp_path: Path) -> None:
    folder = run_fakes(plan_of("drop", steps=12), tmp_path, with_fakes(gradual)).folder
    dropped = sum(line.get("stale_prompts", 0) for line in lines_of(folder / "metrics.jsonl"))
    assert dropped > 0
    assert_balanced(folder, 12, int(dropped))


def _stopped(plan: Plan, runs: Path, dies: Dies) -> Path | None:
    folders: list[Path] = []
    session = SessionOptions(progress=False, threads=1, make_launcher=lambda kind, threads: KilledAt(dies, gradual))
    try:
        run(plan, RunOptions(runs=runs, session=session, on_folder=folders.append))
    except Killed:
        return folders[0]
    return None


def test_killed_before_any_piece_of_work_it_goes_on_and_loses_no_prompt(tmp_path: Path) -> None:
    works, plan = 0, plan_of(steps=3)
    while (folder := _stopped(plan, tmp_path / str(works), nth(works))) is not None:
        resume(folder, session=with_fakes(gradual))
        assert_balanced(folder, 3)
        works += 1
    assert works > 30


@pytest.mark.parametrize("when", [BEFORE, AFTER])
def test_a_rank_lost_at_any_instruction_loses_no_prompt(tmp_path: Path, when: str) -> None:
    """A lost engine takes half responses with it, so the stage is rolled back."""
    plan = plan_of()
    for number, instruction in enumerate(plan.stages[0].programs.instructions):
        loses, left = at(instruction.id, 3), [True]
        launcher = Losing(lambda work, loses=loses, left=left: loses(work) and bool(left) and left.pop(), when, gradual)
        folder = run_fakes(plan, tmp_path / str(number), losing(launcher)).folder
        assert_balanced(folder)
        losses = lines_of(folder / "faults.jsonl") if launcher.revived or launcher.rewound else []
        assert all(("rolled_back_to" in loss) is loss["role"].startswith("actor") for loss in losses)
