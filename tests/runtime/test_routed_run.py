"""Whole runs with routers: each reward scores the rows that are sent to it and no others, and each row has its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flowrl.api.compile import compile_spec
from flowrl.api.preflight import preflight
from flowrl.diag.diagnostic import FlowError
from flowrl.runtime.run import RunOptions, run
from flowrl.runtime.session import SessionOptions
from flowrl.spec import load
from tests.conftest import Told
from tests.runtime.runs import lines_of
from tests.runtime.tiny_flow import tiny_rewarded

ROLES = """\
  code: {kind: reward, function: "rewards.py:code"}
  easy: {kind: reward, function: "rewards.py:easy"ON_ERROR}
  hard: {kind: reward, function: "rewards.py:hard"}
  math: {kind: reward, router: {by: level, routes: {"1": easy, "2, 3": hard}}}
  reward: {router: {by: domain, routes: {code: code, "*": math}}}
"""
FLOW = tiny_rewarded(
    "routed", "prompt: task, keep: [domain, level]", ROLES, "prompts: 4, samples_per_prompt: 2", steps=2
)
REWARDS = """
def code(response, domain, level):
    assert set(domain) <= {"code"}, domain
    return [100.0 + n for n in level]

def easy(response, domain, level):
    assert set(domain) <= {"math"} and set(level) <= {1}, (domain, level)
    return [10.0 for _ in response]

def hard(response, domain, level):
    assert set(domain) <= {"math"} and set(level) <= {2, 3}, (domain, level)
    return [float(n) for n in level]
"""
ROWS = [("code", 1), ("math", 1), ("math", 2), ("code", 7), ("math", 3), ("math", 2), ("math", 2), ("math", 3)]


def carried_out(
    folder: Path, rows: list[tuple[object, object]], text: str = FLOW, functions: str = REWARDS
) -> list[dict[str, Any]]:
    lines = ({"task": f"{domain} {level}", "domain": domain, "level": level} for domain, level in rows)
    (folder / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "rewards.py").write_text(functions)
    (folder / "flow.yaml").write_text(text.replace("ON_ERROR", ""))
    plan = compile_spec(load(folder / "flow.yaml", ()))
    preflight(plan)
    made = run(plan, RunOptions(runs=folder / "runs", session=SessionOptions(progress=False, threads=1)))
    lines = [line for line in lines_of(made.folder / "metrics.jsonl") if "reward.rewards" in line]
    samples = lines_of(made.folder / "samples.jsonl")
    return [{**line, "shown": [s["reward"] for s in samples if s["step"] == line["step"]]} for line in lines]


def test_rows_are_split_and_joined_again(tmp_path: Path) -> None:
    first, second = carried_out(tmp_path, list(ROWS))
    assert first["reward.rewards"] == (101 + 10 + 2 + 107) / 4
    assert (first["code.rewards"], first["easy.rewards"], first["hard.rewards"]) == (104.0, 10.0, 2.0)
    assert (first["reward.rewards_of_code"], first["reward.rewards_of_math"]) == (104.0, 6.0)
    assert first["math.rewards"] == 6.0
    assert first["shown"] == [101.0, 10.0, 2.0, 107.0][: len(first["shown"])]
    assert second["reward.rewards"] == (3 + 2 + 2 + 3) / 4  # no code and nothing easy in this step
    assert "easy.rewards" not in second


def test_a_route_that_drops_takes_its_groups_away(tmp_path: Path) -> None:
    rows = [*ROWS[:4], *ROWS[:4]]
    rows[5] = ("math", 1)
    broken = FLOW.replace("ON_ERROR", ", on_error: drop").replace("rewards.py:easy", "rewards.py:code")
    first, _ = carried_out(tmp_path, list(rows), broken)
    assert first["easy.failed"] == 1.0
    assert first["reward.rewards"] == pytest.approx((101 + 2 + 107) / 3)


@pytest.mark.parametrize("value", ["chat", None])
def test_a_value_without_a_route_is_told(tmp_path: Path, told: Told, value: object) -> None:
    text = FLOW.replace('"*": math', "math: math")
    with pytest.raises(FlowError) as failed:
        carried_out(tmp_path, [*ROWS[:3], (value, 1)], text)
    told(failed.value, "FR0873", "null" if value is None else "")


def test_rewards_of_tokens_are_combined_and_trained_on(tmp_path: Path) -> None:
    """Own tokens are worth their place, and a tenth more in all: 4 of them give 0.1 x 4 + 1 + 2 + 3 + 4 at most."""
    parts = """  code: {kind: reward, function: "rewards.py:places", unit: token}
  easy: {kind: reward, function: "rewards.py:tenths", unit: token}
  reward: {combine: {code: 1.0, easy: 0.5}, unit: token}
  advantage: {estimator: reinforce}
edges:
  - actor_infer.generate -> code.score, easy.score
  - code.score, easy.score -> reward.score
"""
    text = FLOW[: FLOW.index("  code:")] + parts + FLOW[FLOW.index("  - data.train") :]
    text = text.replace("  - actor_infer.generate -> reward.score\n", "")
    functions = """
def places(response, loss_mask):
    return [[float(n) for n in range(1, sum(own) + 1)] for own in loss_mask]

def tenths(tokens):
    return [[0.2 for _ in row] for row in tokens]
"""
    (first, *_) = carried_out(tmp_path, list(ROWS), text, REWARDS + functions)
    assert 1.0 < first["code.rewards"] <= 10.0
    assert first["reward.rewards"] == pytest.approx(first["code.rewards"] + 0.5 * first["easy.rewards"], rel=1e-5)
