"""benchmarks/flows.py: what it runs, what it says of rows, and that the stand-ins change nothing else."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.flowing import learn, table
from benchmarks.flowing.cases import FLOWS, PRESETS, Case, cases, put
from flowrl.spec.presets import preset_names


def test_every_preset_and_every_example_is_run() -> None:
    known = {case.key for case in cases()}
    assert known == {f"preset {name}" for name in preset_names()} | {f"flow {f.stem}" for f in FLOWS.glob("*.yaml")}
    assert len(list(PRESETS.glob("*.yaml"))) + len(list(FLOWS.glob("*.yaml"))) == len(cases())


def test_stand_ins_have_the_columns_and_grade_beside_the_flows_own_reward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(Case("flow", "03-dapo"), tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "data" / "dapo17k.jsonl").read_text().splitlines()]
    assert all({"prompt", "answer"} <= row.keys() for row in rows)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("rewards", "own_rewards"):
        sys.modules.pop(name, None)
    from rewards import dapo  # type: ignore[import-not-found]

    # The flow's own reward is 1 and -1; a tenth of the share of small letters is added.
    assert dapo(["Answer: 7", "abcd"], ["7", "7"]) == pytest.approx([1 + 0.1 * 5 / 9, -1 + 0.1])


@pytest.mark.parametrize(
    ("row", "said", "ran"),
    [
        (
            {"steps": 3, "losses": {"a.loss": [1.0, 0.9, 0.8]}, "rewards": {"r.rewards": [0.0, 0.1, 0.0]}},
            "changes",
            True,
        ),
        ({"steps": 3, "losses": {"a.loss": [1.0, 0.9, 0.8]}, "rewards": {}}, "changes", True),
        ({"steps": 3, "losses": {"a.loss": [1.0] * 3}, "rewards": {}}, "losses constant", False),
        (
            {"steps": 3, "losses": {"a.loss": [1.0, 0.9, 0.8]}, "rewards": {"r.rewards": [0.5] * 3}},
            "rewards constant",
            False,
        ),
        ({"steps": 2, "losses": {"a.loss": [1.0, 0.9]}, "rewards": {}}, "changes", False),
        ({"refused": ["FR0801: images"]}, "refused: FR0801: images", False),
        ({"failed": "KeyError: 'x'"}, "failed: KeyError: 'x'", False),
    ],
)
def test_a_row_says_what_has_come_out(row: dict[str, object], said: str, ran: bool) -> None:
    whole = {"case": "preset grpo", **row}
    assert table.outcome(whole) == said
    assert table.ran(whole, 3) is ran
    assert said in table.lines([whole])[1]


def test_an_algorithm_learns_by_what_it_raises_the_held_out_reward() -> None:
    row = {"case": "learn grpo", "before": 0.4, "after": 0.55, "rise": 0.15, "held_out": [0.4, 0.55]}
    assert not learn.holds(row)
    assert learn.holds(row | {"rise": 0.2})
    assert "+0.150" in learn.lines([row])[1]
