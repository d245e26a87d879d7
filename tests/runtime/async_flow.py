"""Asynchronous GRPO of a tiny model, with the real backends: responses of many lengths, and rewards that differ."""

from __future__ import annotations

from pathlib import Path

from flowrl.api.compile import compile_spec
from flowrl.plan.plan import Plan
from flowrl.runtime.run import RunOptions, run
from flowrl.runtime.session import SessionOptions
from flowrl.spec import loads

FLOW = """
flowrl: 1
name: async-grpo
cluster: {gpu: cpu, gpus_per_node: 2}
models:
  policy:
    source: {architecture: qwen2, tokenizer: characters, hidden_size: 64, layers: 1, heads: 2, kv_heads: 2,
             ffn_size: 64, max_positions: 64, tie_embeddings: true}
    dtype: float32
data:
  train: {source: "task.py:rows", prompt: question, max_prompt_tokens: 12}
roles:
  actor_train:
    {model: policy, backend: fsdp, optimizer: {name: adamw, lr: 1.0e-2},
     update: {loss: ppo, old_log_probs: recompute, correction: {name: tis, unit: token, cap: 2.0}}}
  actor_infer: {model: policy, backend: hf, 
                generate: {max_response_tokens: 44, stop: ["1", "3", "7", "a", "b", "c", "e"]}}
  reward: {function: "task.py:reward"}
  advantage: {estimator: grpo}
edges:
  - data.train -> actor_infer.generate
  - actor_infer.generate -> reward.score
  - reward.score -> advantage.estimate
  - advantage.estimate -> actor_train.update
  - actor_train => actor_infer
step: {prompts: 4, samples_per_prompt: 2}
placement: {pools: {rollout: {gpus: 1, roles: [actor_infer]}, train: {gpus: 1, roles: [actor_train]}}}
run: {steps: 6, samples_logged: 4, loggers: []}
"""
TASK = """
def rows():
    return [{"question": str(i) + "+" + str(3 * i) + "="} for i in range(40)]


def reward(response):
    return [sum(character.isdigit() for character in text) / (4 + len(text)) for text in response]
"""


def async_plan(folder: Path, *sets: str) -> Plan:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "task.py").write_text(TASK)
    return compile_spec(loads(FLOW, folder=str(folder), sets=sets))


def run_async(folder: Path, *sets: str, launcher: str = "inline") -> Path:
    """The run's folder."""
    session = SessionOptions(progress=False, threads=1)
    plan = async_plan(folder, *sets)
    return run(plan, RunOptions(runs=folder / "runs", folder=folder, launcher=launcher, session=session)).folder
