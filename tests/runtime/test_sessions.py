"""Sessions in runs with fakes: rows that come in parts, in whatever order, change nothing but when things happen."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from flowrl.backends.batch import Batch
from flowrl.backends.contract import Call, RankSetup, Result
from flowrl.graph.graph import Graph, Kind, Schedule
from flowrl.plan.plan import Plan, StageRun
from flowrl.program.program import InstructionKind
from flowrl.runtime.sessions import Session
from tests.runtime.fakes import FakeGenerator, fake_number, make_fake
from tests.runtime.plans import grpo_graph, make_plan, split, stage_plan
from tests.runtime.runs import logs_of, nth, resume_fakes, run_fakes, run_killed, trained_state, with_fakes

RUN = StageRun(steps=4, checkpoint_every_steps=2, loggers=(), samples_logged=2)


class Streaming(FakeGenerator):
    """Gives first what a number drawn by sample id says is done first."""

    def open(self, call: Call, batch: Batch) -> None:
        result = self.call(call, batch)
        assert result.batch is not None
        self.made, self.given, self.metrics = result.batch, 0, result.metrics
        done = [fake_number(call.seed, "done", int(i)) for i in self.made.ids]
        self.order = np.argsort(np.asarray(done))

    def take(self, number: int, parts: int, *, by_prompt: bool) -> Result:
        assert not by_prompt
        until = len(self.order) * number // parts
        places, self.given = np.sort(self.order[self.given : until]), until
        return Result(self.made.select(places), self.metrics if number == 1 else {})


def make_streaming(setup: RankSetup) -> object:
    return Streaming(setup) if setup.role.kind is Kind.GENERATOR else make_fake(setup)


def in_parts(graph: Graph, takes: int) -> Graph:
    return structs.replace(graph, schedule=Schedule(max_lag=graph.schedule.max_lag, takes=takes))


def plan_of(takes: int, max_lag: int = 0) -> Plan:
    graph = in_parts(grpo_graph(updates=2, max_lag=max_lag, val_every=2), takes)
    return make_plan(stage_plan(graph, split(graph), run=RUN))


def close(one: Mapping[str, list[dict[str, Any]]], other: Mapping[str, list[dict[str, Any]]]) -> None:
    """Equal but for the last bits of means, which are taken over the parts."""
    assert one["ledger.jsonl"] == other["ledger.jsonl"]
    assert one["samples.jsonl"] == other["samples.jsonl"]
    for mine, theirs in zip(one["metrics.jsonl"], other["metrics.jsonl"], strict=True):
        assert mine.keys() == theirs.keys()
        for name, value in mine.items():
            assert value == (pytest.approx(theirs[name], rel=1e-6) if isinstance(value, float) else theirs[name]), name


def test_the_program_has_a_session_that_scores_in_parts() -> None:
    programs = plan_of(4).stages[0].programs
    ids = [i.id for i in programs.instructions]
    assert [id for id in ids if "actor_infer.generate" in id and "@val" not in id] == [
        "open actor_infer.generate",
        *(f"take actor_infer.generate {n}/4" for n in (1, 2, 3, 4)),
        "close actor_infer.generate",
    ]
    assert [id for id in ids if id.startswith("run reward.score ")] == [f"run reward.score {n}/4" for n in (1, 2, 3, 4)]


@pytest.mark.parametrize("make_rank", [make_fake, make_streaming])
@pytest.mark.parametrize("max_lag", [0, 1])
def test_parts_change_no_number(tmp_path: Path, make_rank: Any, max_lag: int) -> None:
    """Whether the backend streams or gives all with the first take."""
    whole = run_fakes(plan_of(1, max_lag), tmp_path / "whole")
    parts = run_fakes(plan_of(4, max_lag), tmp_path / "parts", with_fakes(make_rank))
    close(logs_of(whole.folder), logs_of(parts.folder))
    assert trained_state(whole.folder, "grpo", 4) == trained_state(parts.folder, "grpo", 4)


def test_killed_between_two_takes_it_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    plan = plan_of(2)
    plan = structs.replace(
        plan, stages=(structs.replace(plan.stages[0], run=structs.replace(RUN, steps=2, checkpoint_every_steps=1)),)
    )
    whole = run_fakes(plan, tmp_path / "whole")
    works = 0
    while (folder := run_killed(plan, tmp_path / f"killed-{works}", nth(works))) is not None:
        resume_fakes(folder)
        assert logs_of(folder) == logs_of(whole.folder), f"killed before work {works}"
        works += 1
    assert works > 20


def test_scoring_begins_before_the_last_take() -> None:
    """Each part is scored as soon as it has been taken: by the tokens, whatever the clock says."""
    programs = plan_of(4).stages[0].programs
    feeds = {c.target: c.source for c in programs.channels if c.source.startswith("take")}
    assert {
        f"run reward.score {n}/4": f"take actor_infer.generate {n}/4" for n in (1, 2, 3, 4)
    }.items() <= feeds.items()
    assert feeds["run actor_train.update 1/2"] == feeds["run advantage.estimate"] == "take actor_infer.generate 4/4"


class Whole:
    """Three prompts of 2, 3 and 1 samples, all made at once."""

    def __init__(self) -> None:
        self.calls = 0

    def call(self, call: Any, batch: Any) -> Result:
        self.calls += 1
        prompts = np.asarray([0, 0, 1, 1, 1, 2])
        return Result(Batch(np.arange(6), prompts, {}), {"m": (1.0, 6.0)})


@pytest.mark.parametrize(("by_prompt", "given"), [(False, [[0, 1, 2], [3, 4, 5]]), (True, [[0, 1], [2, 3, 4, 5]])])
def test_a_rank_that_cannot_stream_gives_rows_in_their_order(by_prompt: bool, given: list[list[int]]) -> None:
    rank: Any = Whole()
    call: Any = None
    batch: Any = None
    session = Session(rank, call, batch)
    results = [session.take(n, 2, by_prompt=by_prompt) for n in (1, 2)]
    assert [r.batch.ids.tolist() for r in results if r.batch is not None] == given
    assert [r.metrics for r in results] == [{"m": (1.0, 6.0)}, {}]
    assert rank.calls == 1


def test_every_sample_is_taken_once_and_scored_in_its_part(tmp_path: Path) -> None:
    kinds = {i.kind for i in plan_of(4).stages[0].programs.instructions}
    assert {InstructionKind.OPEN, InstructionKind.TAKE, InstructionKind.CLOSE} <= kinds
    logs = logs_of(run_fakes(plan_of(4), tmp_path, with_fakes(make_streaming)).folder)
    assert [line["samples"] for line in logs["ledger.jsonl"]] == [12] * 4
    assert all(line["reward"] is not None for line in logs["samples.jsonl"])
