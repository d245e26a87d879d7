"""Episodes with every part real: FSDP trains, the vLLM engine plays on a lake in an actor of its own, the lake leads
from another one. Each turn is sampled under the weights of its step, and under what was heard before it.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flowrl.api.compile import compile_spec
from flowrl.runtime.launchers.choose import RAY, choose
from flowrl.runtime.run import RunOptions, run
from flowrl.runtime.session import SessionOptions
from flowrl.spec import load
from tests.runtime.test_episodes import LAKE

pytest.importorskip("ray")
pytest.importorskip("vllm")
pytestmark = [
    pytest.mark.ray,
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]


def test_a_lake_is_played_by_an_engine_in_an_actor_of_its_own(tmp_path: Path) -> None:
    pools = "{a: {gpus: 1, roles: [actor_train]}, b: {gpus: 1, roles: [actor_infer]}}"
    edits = {
        "backend: hf": "backend: vllm",
        "models:\n": "cluster: 2xcpu\nmodels:\n",
        "step: {prompts": f"placement: {{pools: {pools}}}\nstep: {{prompts",
        "args: {rules: false}": "args: {rules: false, any_text: true}",
        "{steps: 2, seed: 3}": "{steps: 3, seed: 3}",
    }
    flow = LAKE
    for old, new in edits.items():
        assert old in flow
        flow = flow.replace(old, new)
    (tmp_path / "flow.yaml").write_text(flow)
    plan = compile_spec(load(tmp_path / "flow.yaml"))
    assert choose(plan) == RAY
    session = SessionOptions(progress=False, threads=2)
    folder = run(plan, RunOptions(runs=tmp_path / "runs", folder=tmp_path, session=session)).folder
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "actor_train.loss" in line]
    assert len(steps) == 3
    for line in steps:
        assert 1.0 <= line["lake.turns"] <= 3.0
        assert 0 < line["actor_train.rollout_log_prob_diff_max"] < 1e-4
        assert line["actor_infer.response_tokens"] <= 9.0
    assert any(line["actor_train.grad_norm"] > 1e-3 for line in steps)
    assert any("lake.rewards@val" in line for line in lines)
