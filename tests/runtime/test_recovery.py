"""A rank that is lost anywhere changes nothing in what a run comes to: fakes, which tell lost and repeated rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import structs

from flowrl.diag.diagnostic import FlowError
from flowrl.graph.graph import Graph
from flowrl.plan.plan import Plan, StageRun
from flowrl.runtime.launchers.contract import Work
from flowrl.runtime.recovery import Loss
from flowrl.runtime.runfile import RunStatus
from tests.conftest import Told
from tests.runtime.fakes import make_fake
from tests.runtime.losing import AFTER, BEFORE, Loses, Losing, careful, losing
from tests.runtime.plans import colocated, grpo_graph, make_plan, sft_graph, split, stage_plan
from tests.runtime.runs import at, lines_of, logs_of, run_fakes, trained_state, with_fakes
from tests.runtime.written import TEXTS, written

RUN = StageRun(steps=4, checkpoint_every_steps=2, loggers=(), samples_logged=2)


def _graph(**more: int) -> Graph:
    return grpo_graph(updates=2, val_every=2, **more)


def _in_parts(graph: Graph) -> Graph:
    return structs.replace(graph, schedule=structs.replace(graph.schedule, takes=3))


PLANS = {
    "split": make_plan(stage_plan(_graph(), split(_graph()), RUN)),
    "taking turns": make_plan(stage_plan(_graph(), colocated(_graph()), RUN)),
    "in parts": make_plan(stage_plan(_in_parts(_graph()), split(_graph()), RUN)),
    "lag 1": make_plan(stage_plan(_graph(max_lag=1), split(_graph()), RUN)),
}


def once(instruction: str, step: int) -> Loses:
    left = [True]
    meant = at(instruction, step)
    return lambda work: meant(work) and bool(left) and left.pop()


def _all_losses(plan: Plan, when: str, runs: Path) -> Iterator[tuple[str, Losing, Path]]:
    """A run for each instruction of the program, whose rank is lost at it in step 3, in which validation is due."""
    for number, instruction in enumerate(plan.stages[0].programs.instructions):
        launcher = Losing(once(instruction.id, 3), when, careful)
        result = run_fakes(plan, runs / str(number), losing(launcher))
        assert result.state is RunStatus.FINISHED
        if launcher.revived or launcher.rewound:
            yield instruction.id, launcher, result.folder


@pytest.mark.parametrize("when", [BEFORE, AFTER])
@pytest.mark.parametrize("name", list(PLANS))
def test_a_rank_lost_at_any_instruction_changes_nothing(tmp_path: Path, name: str, when: str) -> None:
    plan = PLANS[name]
    whole = run_fakes(plan, tmp_path / "whole", with_fakes(careful))
    revived, rewound = set[str](), 0
    for instruction, launcher, folder in _all_losses(plan, when, tmp_path):
        assert logs_of(folder) == logs_of(whole.folder), f"lost at `{instruction}`"
        assert trained_state(folder, "grpo", 4) == trained_state(whole.folder, "grpo", 4)
        (loss,) = lines_of(folder / "faults.jsonl")
        assert ("rolled_back_to" in loss) == bool(launcher.rewound) == (loss["role"] == "actor_train")
        revived |= set(launcher.revived)
        rewound += launcher.rewound
    assert revived == {"data.train", "data.val", "actor_infer", "reward", "advantage"}
    assert rewound >= 3, "two updates and what publishes the weights"


def test_only_what_came_after_the_checkpoint_is_done_again(tmp_path: Path) -> None:
    done: list[tuple[str, int]] = []

    class Counting(Losing):
        def submit(self, work: Work) -> None:
            done.append((work.firing.instruction.id, work.firing.step))
            super().submit(work)

    launcher = Counting(once("run actor_train.update 2/2", 4), BEFORE, make_fake)
    run_fakes(PLANS["split"], tmp_path, losing(launcher))
    first = done.index(("run actor_train.update 2/2", 4))
    assert min(step for _, step in done[first + 1 :] if step) == 3
    assert done.count(("run actor_train.update 1/2", 2)) == 1
    assert done.count(("run actor_train.update 1/2", 3)) == 2


def test_a_stage_without_a_checkpoint_starts_anew_and_earlier_stages_stay(tmp_path: Path) -> None:
    run = structs.replace(RUN, steps=2, checkpoint_every_steps=None)
    plan = make_plan(stage_plan(sft_graph(), run=run), stage_plan(grpo_graph(), run=run))
    whole = run_fakes(plan, tmp_path / "whole")
    lost = at("run actor_train.update", 2)
    left = [False, True]  # of the two stages' second updates the second
    launcher = Losing(lambda work: lost(work) and bool(left) and left.pop(0), AFTER, make_fake)
    folder = run_fakes(plan, tmp_path, losing(launcher)).folder
    assert launcher.rewound == 1
    assert [line.get("rolled_back_to") for line in lines_of(folder / "faults.jsonl")] == [0]
    assert logs_of(folder) == logs_of(whole.folder)


@pytest.mark.parametrize("role", ["actor_infer", "actor_train"])
def test_a_rank_that_is_lost_again_and_again_ends_the_run(tmp_path: Path, told: Told, role: str) -> None:
    """Steps that a roll-back makes again do not count as new ones."""
    graph = written(grpo_graph(val_every=None))
    plan = make_plan(stage_plan(graph, split(graph), RUN))
    instruction = "run actor_infer.generate" if role == "actor_infer" else "run actor_train.update"
    launcher = Losing(at(instruction, 4), BEFORE, make_fake)
    with pytest.raises(FlowError) as raised:
        run_fakes(plan, tmp_path, losing(launcher))
    told(raised.value, "FR0920", role, texts=TEXTS)
    folder = next(tmp_path.iterdir())
    assert len(lines_of(folder / "faults.jsonl")) == 3
    kept = ["step-000002", "step-000003"] if role == "actor_infer" else ["step-000002"]
    assert sorted(p.name for p in (folder / "checkpoints" / "grpo").iterdir()) == kept


def test_a_rank_may_be_lost_in_every_step(tmp_path: Path) -> None:
    """Each new whole step begins to count anew."""
    seen: set[int] = set()

    def once_a_step(work: Work) -> bool:
        new = work.firing.instruction.op == "reward.score" and work.firing.step not in seen
        seen.update({work.firing.step} if new else ())
        return new

    launcher = Losing(once_a_step, BEFORE, make_fake)
    folder = run_fakes(PLANS["split"], tmp_path, losing(launcher, replacements=1)).folder
    assert launcher.revived == ["reward"] * 4
    assert [line.get("ranks_lost") for line in lines_of(folder / "metrics.jsonl")] == [1, 1, 1, 1, None]


def test_without_replacements_the_first_loss_ends_the_run(tmp_path: Path) -> None:
    launcher = Losing(at("run reward.score", 2), BEFORE, make_fake)
    with pytest.raises(FlowError) as raised:
        run_fakes(PLANS["split"], tmp_path, losing(launcher, replacements=0))
    assert [d.code for d in raised.value.diagnostics] == ["FR0955"]
    assert not launcher.revived


def test_a_rank_that_dies_at_its_start_is_replaced_again(tmp_path: Path) -> None:
    whole = run_fakes(PLANS["split"], tmp_path / "whole")
    launcher = Losing(once("run actor_infer.generate", 3), BEFORE, make_fake, at_start=2)
    folder = run_fakes(PLANS["split"], tmp_path, losing(launcher)).folder
    assert len(launcher.revived) == 3
    told = [(line["reason"], line.get("again", 0)) for line in lines_of(folder / "faults.jsonl")]
    assert told == [("killed", 0), ("killed at its start", 0), ("killed at its start", 1)]
    assert logs_of(folder) == logs_of(whole.folder)


def test_losses_are_told_in_progress_and_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reward, train = once("run reward.score", 3), once("run actor_train.update 1/2", 3)
    launcher = Losing(lambda work: reward(work) or train(work), BEFORE, make_fake)
    folder = run_fakes(PLANS["split"], tmp_path, losing(launcher, progress=None)).folder
    said = capsys.readouterr().err
    assert "step 3: `reward`, rank 0, was lost at `run reward.score`; made anew in " in said
    assert "1 firing submitted again" in said
    assert "on from the checkpoint of step 2" in said
    trace = json.loads((folder / "trace.json").read_text())
    names = [event.get("name") for event in trace["traceEvents"]]
    assert names.count("replace reward") == names.count("replace actor_train") == 1
    assert [Loss(**line).role for line in lines_of(folder / "faults.jsonl")] == ["reward", "actor_train"]
