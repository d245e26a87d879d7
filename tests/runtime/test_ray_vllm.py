"""The whole of it on one host: FSDP2 over two gloo ranks trains, the real vLLM generates, weights go from the ranks to
the engine in shared memory after every step. Rewards that vary and a large learning rate make sure that they change.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flowrl.compiler.lower.graph import lower_stage
from flowrl.compiler.passes.pipeline import run_passes
from flowrl.graph.graph import Graph
from flowrl.plan.plan import Layout, Plan, Pool, RolePlacement, StageRun
from flowrl.runtime.launchers.ray import RayLauncher
from flowrl.runtime.run import RunOptions, run
from flowrl.runtime.session import SessionOptions
from flowrl.spec import loads
from tests.runtime.plans import make_plan, stage_plan

pytest.importorskip("ray")
pytest.importorskip("vllm")
pytestmark = [
    pytest.mark.ray,
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]

FLOW = """
flowrl: 1
name: grpo
models:
  policy:
    source: {architecture: qwen2, tokenizer: characters, hidden_size: 64, layers: 2, heads: 2, kv_heads: 1,
             ffn_size: 96, max_positions: 64, tie_embeddings: true}
    dtype: float32
data:
  train: {source: "task.py:rows", prompt: question, max_prompt_tokens: 40}
roles:
  actor_train: {model: policy, backend: fsdp, optimizer: {name: adamw, lr: 1.0e-2}, update: {loss: ppo}}
  actor_infer: {model: policy, backend: vllm, generate: {max_response_tokens: 8, temperature: 0.8}}
  reward: {function: "task.py:reward"}
  advantage: {estimator: grpo}
edges:
  - data.train -> actor_infer.generate
  - actor_infer.generate -> reward.score
  - reward.score -> advantage.estimate
  - advantage.estimate -> actor_train.update
  - actor_train => actor_infer
step: {prompts: 4, samples_per_prompt: 4}
run: {steps: 5}
"""
TASK = '''
def rows():
    """Prompts longer than a block of the KV cache, all with one beginning: the prefix cache is in use."""
    return [{"question": "every prompt begins with these words " + str(i % 10)} for i in range(50)]


def reward(response):
    return [sum(character.isdigit() for character in text) / 8 for text in response]
'''


def _pools(graph: Graph) -> tuple[Pool, ...]:
    host = tuple(role.name for role in graph.roles if not role.name.startswith("actor"))
    return (
        _pool("train", ("node0/0", "node0/1"), "actor_train", Layout(dp=2)),
        _pool("rollout", ("node0/2",), "actor_infer", Layout()),
        Pool(
            name="host",
            devices=(),
            device="host",
            roles=tuple(RolePlacement(role=name, layout=Layout()) for name in host),
            slots=4,
        ),
    )


def _pool(name: str, devices: tuple[str, ...], role: str, layout: Layout) -> Pool:
    return Pool(name=name, devices=devices, device="cpu", roles=(RolePlacement(role=role, layout=layout),))


def _plan(folder: Path) -> Plan:
    (folder / "task.py").write_text(TASK)
    spec = loads(FLOW, folder=str(folder))
    graph, _ = run_passes(lower_stage(spec, 0))
    return make_plan(stage_plan(graph, _pools(graph), StageRun(steps=5, loggers=(), samples_logged=2)))


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, float]]:
    folder = tmp_path_factory.mktemp("flow")
    session = SessionOptions(make_launcher=lambda *_: RayLauncher(1), progress=False)
    result = run(_plan(folder), RunOptions(runs=folder / "runs", folder=folder, launcher="ray", session=session))
    return [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]


def test_the_engine_has_the_trainers_weights_in_every_step(lines: list[dict[str, float]]) -> None:
    steps = [line for line in lines if not line.get("epilogue")]
    assert [line["step"] for line in steps] == [1, 2, 3, 4, 5]
    for line in steps:
        assert line["actor_train.grad_norm"] > 1e-3
        assert 0 < line["actor_train.rollout_log_prob_diff_max"] < 1e-4
        assert line["actor_train.rollout_log_prob_diff_mean"] <= line["actor_train.rollout_log_prob_diff_max"]


def test_what_the_engine_samples_follows_the_training(lines: list[dict[str, float]]) -> None:
    """With these steps the share of digits rises far beyond that of a policy that keeps its first weights."""
    rewards = [line["reward.rewards"] for line in lines if not line.get("epilogue")]
    assert rewards[-1] > rewards[0] + 0.1


def test_nothing_is_left_behind(lines: list[dict[str, float]]) -> None:
    import ray

    assert not ray.is_initialized()
    names = [path.name for path in Path("/dev/shm").glob("flowrl-*")]
    assert [name for name in names if not Path("/proc", name.split("-")[2]).exists()] == []
