"""Updates that begin early, on the real parts: vLLM streams, FSDP trains on what has come while it decodes the rest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flowrl.compiler.lower.graph import lower_stage
from flowrl.compiler.passes.pipeline import run_passes
from flowrl.graph.graph import Graph
from flowrl.plan.plan import Layout, Plan, Pool, RolePlacement, StageRun
from flowrl.program.program import Rows
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

STEPS, PROMPTS, SAMPLES = 3, 8, 4
FLOW = f"""
flowrl: 1
name: grpo
models:
  policy:
    source: {{architecture: qwen2, tokenizer: characters, hidden_size: 64, layers: 2, heads: 2, kv_heads: 1,
             ffn_size: 96, max_positions: 256, tie_embeddings: true}}
    dtype: float32
data:
  train: {{source: "task.py:rows", prompt: question, max_prompt_tokens: 16}}
roles:
  actor_train:
    model: policy
    backend: fsdp
    optimizer: {{name: adamw, lr: 1.0e-3}}
    update: {{loss: ppo, old_log_probs: rollout}}
  actor_infer:
    model: policy
    backend: vllm
    generate: {{max_response_tokens: 200, stop: [a, e, i, o, u]}}
    engine: {{max_sequences: 4}}
  reward: {{function: "task.py:reward"}}
  advantage: {{estimator: grpo}}
edges:
  - data.train -> actor_infer.generate
  - actor_infer.generate -> reward.score
  - reward.score -> advantage.estimate
  - advantage.estimate -> actor_train.update
  - actor_train => actor_infer
step: {{prompts: {PROMPTS}, samples_per_prompt: {SAMPLES}, updates: 4}}
schedule: {{takes: 4, minibatches: arrival}}
run: {{steps: {STEPS}}}
"""
TASK = """
def rows():
    return [{"question": "say " + str(i)} for i in range(100)]


def reward(response):
    return [len(text) / 200 for text in response]
"""


def _pools(graph: Graph) -> tuple[Pool, ...]:
    host = tuple(role.name for role in graph.roles if not role.name.startswith("actor"))
    return (
        _pool("train", "node0/0", "actor_train"),
        _pool("rollout", "node0/1", "actor_infer"),
        Pool(
            name="host",
            devices=(),
            device="host",
            roles=tuple(RolePlacement(role=name, layout=Layout()) for name in host),
            slots=4,
        ),
    )


def _pool(name: str, device: str, role: str) -> Pool:
    return Pool(name=name, devices=(device,), device="cpu", roles=(RolePlacement(role=role, layout=Layout()),))


def _plan(folder: Path) -> Plan:
    (folder / "task.py").write_text(TASK)
    graph, _ = run_passes(lower_stage(loads(FLOW, folder=str(folder)), 0))
    return make_plan(stage_plan(graph, _pools(graph), StageRun(steps=STEPS, loggers=(), samples_logged=2)))


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Path]:
    folder = tmp_path_factory.mktemp("flow")
    plan = _plan(folder)
    session = SessionOptions(make_launcher=lambda *_: RayLauncher(1), progress=False)
    return plan, run(plan, RunOptions(runs=folder / "runs", folder=folder, launcher="ray", session=session)).folder


def test_the_first_update_begins_before_the_last_part_is_there(ran: tuple[Plan, Path]) -> None:
    plan, folder = ran
    rows = [i.rows for i in plan.stages[0].programs.instructions if i.op == "actor_train.update"]
    assert rows == [Rows(start=n, stop=n + 2, arrived=True) for n in (0, 2, 4, 6)]
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    spans = {(e["name"], e["args"]["step"]): e for e in events if e["ph"] == "X"}
    overlapped = 0
    for step in range(1, STEPS + 1):
        for number in (1, 2, 3, 4):
            update = spans[f"run actor_train.update {number}/4", step]
            part = spans[f"take actor_infer.generate {number}/4", step]
            assert update["ts"] >= part["ts"] + part["dur"]
        last = spans["take actor_infer.generate 4/4", step]
        overlapped += spans["run actor_train.update 1/4", step]["ts"] < last["ts"] + last["dur"]
    assert overlapped, "in no step does the trainer work while the engine does"


def test_every_prompt_is_trained_on_once(ran: tuple[Plan, Path]) -> None:
    _, folder = ran
    lines = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    assert [line["prompts"] for line in lines] == [[[n * PROMPTS, (n + 1) * PROMPTS]] for n in range(STEPS)]
    assert [line["samples"] for line in lines] == [PROMPTS * SAMPLES] * STEPS
