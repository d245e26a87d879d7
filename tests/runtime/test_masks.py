"""A filter that masks: estimators have all rows, updates those that are not masked, of the same minibatches."""

from __future__ import annotations

from pathlib import Path

from flowrl.backends.batch import Batch
from flowrl.backends.contract import Call, RankSetup, Result
from tests.runtime.filtered_flow import plan_of, ranks
from tests.runtime.runs import lines_of, run_fakes, with_fakes

STEP = "prompts: 4, samples_per_prompt: 2, updates: 2"


def _worked(tmp_path: Path, mask: str, step: str = STEP) -> tuple[list[tuple[str, list[int]]], Path]:
    """Ids of the rows that each op worked on, in one step in which odd samples of prompts 0 and 3 have a reward."""
    worked: list[tuple[str, list[int]]] = []

    def make(setup: RankSetup) -> object:
        rank = ranks(lambda prompt: prompt % 3 == 0)(setup)

        class Seen:
            def __getattr__(self, name: str) -> object:
                return getattr(rank, name)

            def call(self, call: Call, batch: Batch) -> Result:
                worked.append((call.op.id, batch.ids.tolist()))
                return rank.call(call, batch)  # type: ignore[attr-defined, no-any-return]

        return Seen()

    plan = plan_of(tmp_path, step, steps=1, informative=f"{{kind: filter, action: mask, by: reward.rewards, {mask}}}")
    return worked, run_fakes(plan, tmp_path / "runs", with_fakes(make)).folder


def rows(*samples: tuple[int, int]) -> list[int]:
    return [(prompt << 16) + sample for prompt, sample in samples]


def test_groups(tmp_path: Path) -> None:
    """Prompts 1 and 2 have no spread: each minibatch trains on one of its two prompts."""
    worked, folder = _worked(tmp_path, "rule: zero_spread")
    everything = rows(*((p, i) for p in range(4) for i in range(2)))
    for op in ("informative.select", "advantage.estimate", "actor_train.log_probs"):
        assert [ids for id, ids in worked if id == op] == [everything], op
    assert [ids for id, ids in worked if id == "actor_train.update"] == [rows((0, 0), (0, 1)), rows((3, 0), (3, 1))]
    (line,) = lines_of(folder / "ledger.jsonl")
    assert line["prompts"] == [[0, 1], [3, 4]]
    assert (line["masked"], line["dropped"], line["samples"]) == ([[1, 3]], [], 4)


def test_samples(tmp_path: Path) -> None:
    """Samples without a reward are masked; a minibatch whose samples all are has no row."""
    worked, folder = _worked(
        tmp_path, "rule: threshold, unit: sample, min: 0.5", STEP.replace("updates: 2", "updates: 4")
    )
    updates = [ids for id, ids in worked if id == "actor_train.update"]
    assert updates == [rows((0, 1)), [], [], rows((3, 1))]
    assert lines_of(folder / "ledger.jsonl")[0]["masked"] == [[1, 3]]


def test_a_mask_is_nothing_to_refill(tmp_path: Path) -> None:
    """Every prompt that is drawn is trained on or masked, so one round is all."""
    _, folder = _worked(tmp_path, "rule: zero_spread", f"{STEP}, refill: {{max_rounds: 3}}")
    assert "refill_rounds" not in lines_of(folder / "metrics.jsonl")[0]
    assert lines_of(folder / "ledger.jsonl")[0]["masked"] == [[1, 3]]
