"""Episodes with every part real: FSDP trains, the vLLM engine plays in an actor of its own, the environment leads from
another one. Each turn is sampled under the weights of its step, and under what was heard before it.
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


LETTERS = """\
class Letters:
    def reset(self, *, seed, options):
        self.turns = 0
        return f"letters, as many as you can, please: {seed % 10} ", {}

    def step(self, action):
        self.turns += 1
        return " more ", sum(each.islower() for each in action) / 3, self.turns == 3, False, {}
"""


def test_an_engine_in_an_actor_of_its_own_plays_with_an_environment_in_another(tmp_path: Path) -> None:
    pools = "{a: {gpus: 1, roles: [actor_train]}, b: {gpus: 1, roles: [actor_infer]}}"
    edits = {
        "backend: hf": "backend: vllm",
        "hidden_size: 32": "hidden_size: 64",
        "models:\n": "cluster: 2xcpu\nmodels:\n",
        "step: {prompts": f"placement: {{pools: {pools}}}\nstep: {{prompts",
        'env: "flowrl:frozen_lake", args: {rules: false}': 'env: "letters.py:Letters"',
        "steps: 2, seed: 3": "steps: 3, seed: 3",
    }
    flow = LAKE
    for old, new in edits.items():
        assert old in flow
        flow = flow.replace(old, new)
    (tmp_path / "flow.yaml").write_text(flow)
    (tmp_path / "letters.py").write_text(LETTERS)
    plan = compile_spec(load(tmp_path / "flow.yaml"))
    assert choose(plan) == RAY
    session = SessionOptions(progress=False, threads=2)
    folder = run(plan, RunOptions(runs=tmp_path / "runs", folder=tmp_path, session=session)).folder
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "actor_train.loss" in line]
    assert len(steps) == 3
    for line in steps:
        assert line["lake.turns"] == 3.0
        assert 0 < line["actor_train.rollout_log_prob_diff_max"] < 1e-4
        assert line["actor_infer.response_tokens"] <= 9.0
        assert line["actor_train.grad_norm"] > 1e-3
    assert len({line["lake.rewards"] for line in steps}) == 3
    assert any("lake.rewards@val" in line for line in lines)
