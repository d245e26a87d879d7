"""Refill: what a step draws, keeps and trains on is what a plain loop over prompts says, whatever the placement, and
however often the run is killed and taken up again."""

from __future__ import annotations

from math import ceil
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from flowrl.backends.batch import Batch
from flowrl.backends.contract import Call, RankSetup, Result
from flowrl.compiler.emit.program import emit
from flowrl.diag.diagnostic import FlowError
from flowrl.plan.plan import Pool, RolePlacement, StagePlan
from flowrl.runtime.checkpoint import newest
from flowrl.runtime.launchers.contract import Work
from flowrl.runtime.launchers.inline import InlineLauncher
from flowrl.runtime.resume import resume
from flowrl.runtime.run import RunOptions, run
from flowrl.runtime.session import SessionOptions
from tests.conftest import Told
from tests.runtime.filtered_flow import Keeps, plan_of, ranks
from tests.runtime.runs import Killed, KilledAt, lines_of, logs_of, run_fakes, with_fakes

HAND = "prompts: 4, samples_per_prompt: 2, refill: {max_rounds: 5, oversample: 1.5}"


def every_third(prompt: int) -> bool:
    return prompt % 3 == 0


def looped(prompts: int, oversample: float, steps: int, keeps: Keeps) -> list[dict[str, object]]:
    """What every step does, in ten lines."""
    found, cursor = [], 0
    for _ in range(steps):
        drawn: list[int] = []
        kept: list[int] = []
        rounds = 0
        while len(kept) < prompts:
            fresh = list(range(cursor, cursor + ceil((prompts - len(kept)) * oversample)))
            cursor, rounds = cursor + len(fresh), rounds + 1
            drawn, kept = drawn + fresh, kept + [p for p in fresh if keeps(p)]
        dropped = [p for p in drawn if not keeps(p)]
        found.append({"prompts": kept[:prompts], "surplus": kept[prompts:], "dropped": dropped, "rounds": rounds})
    return found


def fates_of(folder: Path) -> list[dict[str, Any]]:
    return [
        {name: [p for a, b in line[name] for p in range(a, b)] for name in ("prompts", "surplus", "dropped")}
        | {"rounds": line["rounds"]}
        for line in lines_of(folder / "ledger.jsonl")
    ]


def test_by_hand(tmp_path: Path) -> None:
    """Of four prompts, 1.5 for each that is needed: 6 are drawn, 0 and 3 are left; for two more 3, of which 6; for one
    more 2, of which 9. The next step begins with prompt 11."""
    plan = plan_of(tmp_path, f"{HAND}, updates: 2", steps=2)
    folder = run_fakes(plan, tmp_path, with_fakes(ranks(every_third))).folder
    first, second = fates_of(folder)
    assert first == {"prompts": [0, 3, 6, 9], "surplus": [], "dropped": [1, 2, 4, 5, 7, 8, 10], "rounds": 3}
    assert second["prompts"] == [12, 15, 18, 21]
    assert {line["refill_rounds"] for line in lines_of(folder / "metrics.jsonl")} == {3.0}
    assert lines_of(folder / "metrics.jsonl")[0]["refill_kept"] == pytest.approx(4 / 11)
    checkpoint = newest(folder, ["dapo"])
    assert checkpoint is not None
    assert checkpoint.state.cursors == {"data.train": 22}


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize(
    ("prompts", "oversample", "keeps"),
    [
        (4, 1.0, every_third),
        (4, 2.0, lambda p: True),
        (6, 1.25, lambda p: p * 7919 % 11 < 4),
        (2, 3.0, lambda p: p % 5 in (1, 2)),
    ],
    ids=["a third", "all, of twice as many", "some", "three for one"],
)
@pytest.mark.parametrize("pools", ["one: [actor_train, actor_infer]", "a: [actor_train]; b: [actor_infer]"])
def test_every_prompt_has_the_fate_that_a_plain_loop_gives_it(
    tmp_path: Path, lag: int, prompts: int, oversample: float, keeps: Keeps, pools: str
) -> None:
    step = f"prompts: {prompts}, samples_per_prompt: 2, updates: 2, refill: {{max_rounds: 9, oversample: {oversample}}}"
    plan = plan_of(tmp_path, step, more=f"schedule: {{max_lag: {lag}}}\n", pools=pools)
    folder = run_fakes(plan, tmp_path, with_fakes(ranks(keeps))).folder
    assert fates_of(folder) == looped(prompts, oversample, 3, keeps)
    assert [line["samples"] for line in lines_of(folder / "ledger.jsonl")] == [2 * prompts] * 3
    ages = [line["version"] - line["made_with"] for line in lines_of(folder / "ledger.jsonl")]
    assert ages == [0, lag, lag]


def test_each_op_works_on_the_rows_that_are_its_own(tmp_path: Path) -> None:
    """Rounds on what they draw alone; what no filter decides by on what is left."""
    worked: list[tuple[str, list[int]]] = []

    def make(setup: RankSetup) -> object:
        rank = ranks(every_third)(setup)

        class Seen:
            def __getattr__(self, name: str) -> object:
                return getattr(rank, name)

            def call(self, call: Call, batch: Batch) -> Result:
                worked.append((call.op.id, sorted(set(batch.prompt_ids.tolist()))))
                return rank.call(call, batch)  # type: ignore[attr-defined, no-any-return]

        return Seen()

    plan = plan_of(tmp_path, f"{HAND}, updates: 2", steps=1)
    run_fakes(plan, tmp_path, with_fakes(make))
    drawn, left = [[0, 1, 2, 3, 4, 5], [6, 7, 8], [9, 10]], [0, 3, 6, 9]
    for op in ("actor_infer.generate", "reward.score", "informative.select"):
        assert [rows for id, rows in worked if id == op] == drawn
    for op in ("length.score", "advantage.estimate", "actor_train.log_probs"):
        assert [rows for id, rows in worked if id == op] == [left], op
    assert [rows for id, rows in worked if id == "actor_train.update"] == [left[:2], left[2:]]


def test_rounds_that_are_used_up_end_the_run(tmp_path: Path, told: Told) -> None:
    """The first step has enough in two rounds; in the second one nothing has a spread any more."""
    step = "prompts: 4, samples_per_prompt: 2, refill: {max_rounds: 2, oversample: 1.5}"
    plan = plan_of(tmp_path, step)
    with pytest.raises(FlowError) as caught:
        run_fakes(plan, tmp_path / "runs", with_fakes(ranks(lambda p: p in (0, 2, 4, 6, 7, 9, 11))))
    told(caught.value, "FR0856")
    folder = next((tmp_path / "runs").iterdir())
    assert [line["step"] for line in lines_of(folder / "metrics.jsonl")] == [1]
    checkpoint = newest(folder, ["dapo"])
    assert checkpoint is not None
    assert (checkpoint.state.step, checkpoint.state.cursors["data.train"]) == (1, 8)


def test_killed_anywhere_it_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    more = "schedule: {max_lag: 1}\n"
    plan = plan_of(tmp_path, HAND, more=more, pools="a: [actor_train]; b: [actor_infer]")
    plan = structs.replace(plan, stages=tuple(_saving(stage) for stage in plan.stages))
    whole = run_fakes(plan, tmp_path / "whole", with_fakes(ranks(every_third))).folder
    killed = 0
    for number in range(0, 200, 5):
        folders: list[Path] = []
        left = [number]

        def dies(work: Work, left: list[int] = left) -> bool:
            left[0] -= 1
            return left[0] < 0

        session = SessionOptions(progress=False, make_launcher=lambda kind, threads: KilledAt(dies, ranks(every_third)))
        try:
            run(plan, RunOptions(runs=tmp_path / f"{number}", session=session, on_folder=folders.append))
            break
        except Killed:
            killed += 1
        resume(folders[0], session=with_fakes(ranks(every_third)))
        assert logs_of(folders[0]) == logs_of(whole), f"killed before work {number}"
    assert killed > 8


def _saving(stage: StagePlan) -> StagePlan:
    run = structs.replace(stage.run, checkpoint_every_steps=1)
    return structs.replace(stage, run=run, programs=emit(stage.graph, stage.pools, run))


def test_roles_that_take_turns_do_so_in_every_round(tmp_path: Path) -> None:
    """Engine and reward on one device, each away while the other works: a further round takes the reward off and
    brings the engine back. The trainer loads when the last round is over."""
    plan = plan_of(tmp_path, f"{HAND}, updates: 2", steps=1)
    stage = plan.stages[0]
    names = ("actor_train", "actor_infer", "reward")
    entries = tuple(RolePlacement(role=name, layout=stage.pools[0].roles[0].layout, offloaded=True) for name in names)
    host = next(pool for pool in stage.pools if not pool.devices)
    rest = tuple(entry for entry in host.roles if entry.role not in names)
    pools = (structs.replace(stage.pools[0], roles=entries), structs.replace(host, roles=rest))
    plan = structs.replace(plan, stages=(_placed(stage, pools),))
    did: list[str] = []

    class Noting(InlineLauncher):
        def submit(self, work: Work) -> None:
            if work.firing.instruction.pool == pools[0].name:
                did.append(work.firing.instruction.id)
            super().submit(work)

    session = SessionOptions(progress=False, make_launcher=lambda kind, threads: Noting(threads, ranks(every_third)))
    folder = run_fakes(plan, tmp_path, session).folder
    assert fates_of(folder) == looped(4, 1.5, 1, every_third)
    score = ["run actor_infer.generate", "offload actor_infer", "load reward", "run reward.score"]
    again = ["offload reward", "load actor_infer", *score]
    assert did[:17] == ["load actor_infer", *score, *again, *again]
    assert did[17:20] == ["offload reward", "load actor_train", "run actor_train.log_probs"]


def _placed(stage: StagePlan, pools: tuple[Pool, ...]) -> StagePlan:
    return structs.replace(stage, pools=pools, programs=emit(stage.graph, pools, stage.run))
