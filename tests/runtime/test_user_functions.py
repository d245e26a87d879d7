"""Whole runs whose reward function misbehaves: the run goes on by the policy, and nothing of the function is left."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from flowrl.api.compile import compile_spec
from flowrl.api.preflight import preflight
from flowrl.runtime.launchers.choose import INLINE
from flowrl.runtime.rehearsal import RehearsalOptions, rehearse
from flowrl.runtime.rehearse import Small
from flowrl.runtime.session import SessionOptions
from flowrl.spec import load
from tests.backends.user_process.test_process import children
from tests.runtime.runs import lines_of
from tests.runtime.tiny_flow import tiny_rewarded

REWARD = """\
  reward: {function: "rewards.py:score", timeout_seconds: 3, on_error: POLICY}
"""
FLOW = tiny_rewarded(
    "guarded", "prompt: question, keep: [number]", REWARD, "prompts: 4, samples_per_prompt: 2", steps=3
)
REWARDS = """
import ctypes, math, os, time

def score(response, number):
    if 1 in number:
        os.fork() or time.sleep(600)
        ctypes.string_at(0)
    if 5 in number:
        time.sleep(600)
    return [math.nan if n == 9 else 1.0 for n in number]
"""


@pytest.mark.parametrize("policy", ["default", "drop"])
def test_the_run_goes_on(tmp_path: Path, policy: str) -> None:
    rows = ({"question": f"number {n}", "number": n} for n in range(12))
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "rewards.py").write_text(REWARDS)
    (tmp_path / "flow.yaml").write_text(FLOW.replace("POLICY", policy))
    plan = compile_spec(load(tmp_path / "flow.yaml", ()))
    before, others = len(os.listdir("/proc/self/fd")), set(children(os.getpid()))
    quiet = SessionOptions(progress=False, threads=1)
    options = RehearsalOptions(Small(steps=3), INLINE, tmp_path / "runs", check=preflight, session=quiet)
    made = rehearse(plan, options)
    lines = {line["step"]: line for line in lines_of(made.folder / "metrics.jsonl") if not line.get("epilogue")}
    # Step 1 has the prompt that ends the process, step 2 the one for which it never returns, step 3 the NaN.
    assert [lines[step]["reward.failed"] for step in (1, 2, 3)] == [0.25, 1.0, 0.25]
    assert lines[1]["reward.restarts"] >= 3
    ledger = {line["step"]: line["samples"] for line in lines_of(made.folder / "ledger.jsonl")}
    assert [ledger.get(step, 0) for step in (1, 2, 3)] == ([8, 8, 8] if policy == "default" else [6, 0, 6])
    assert set(children(os.getpid())) <= others
    assert len(os.listdir("/proc/self/fd")) <= before + 1
