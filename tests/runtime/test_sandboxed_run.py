"""A whole run whose responses are hostile code: each ends in its limit's score, the run goes on, nothing is left."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from flowrl.api.compile import compile_spec
from flowrl.api.preflight import preflight
from flowrl.runtime.run import RunOptions, run
from flowrl.runtime.session import SessionOptions
from flowrl.spec import load
from tests.backends.sandbox.hostile import COMES_TO
from tests.backends.sandbox.test_sandbox import inside
from tests.runtime.runs import lines_of
from tests.runtime.tiny_flow import tiny_rewarded

REWARD = """\
  reward: {sandbox: {image: py311, tests: tests, timeout_seconds: 0.7, memory_bytes: 100663296, parallel: 2}}
"""
FLOW = tiny_rewarded("sandboxed", "prompt: task, keep: [tests]", REWARD, "prompts: 2, samples_per_prompt: 4", 2)
CODES = ("fork bomb", "memory hog", "endless loop", "100 MB of output", "full disk")


def test_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = ({"task": f"task {n}", "tests": ["pass", "pass"]} for n in range(4))
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "flow.yaml").write_text(FLOW)
    codes = [COMES_TO[name][0] for name in CODES] + ["open('/usr/x', 'w')", "x = 1", "import os; os._exit(0)"]
    left = codes * 2
    monkeypatch.setattr("flowrl.backends.rewards.sandbox.code_of", lambda response: left.pop(0))
    plan = compile_spec(load(tmp_path / "flow.yaml", ()))
    preflight(plan)
    files = len(os.listdir("/proc/self/fd"))
    made = run(plan, RunOptions(runs=tmp_path / "runs", session=SessionOptions(progress=False, threads=1)))
    lines = [line for line in lines_of(made.folder / "metrics.jsonl") if "reward.rewards" in line]
    assert [line["step"] for line in lines] == [1, 2]
    for line in lines:
        assert line["reward.rewards"] == 1 / 8  # of `x = 1` alone
        ended = {each: line[f"reward.ended_by_{each}"] for each in ("processes", "memory", "time", "output", "files")}
        assert ended == dict.fromkeys(ended, 1 / 8)
        assert line["actor_train.loss"] == line["actor_train.loss"]
    assert not left
    assert not inside()
    assert len(os.listdir("/proc/self/fd")) <= files + 1
