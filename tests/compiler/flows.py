"""Flows for tests of the compiler: whole YAML texts with user functions of `examples/arithmetic.py`."""

from __future__ import annotations

from pathlib import Path

from flowrl.compiler.lower.graph import lower_stage
from flowrl.compiler.passes.pipeline import run_passes
from flowrl.diag.diagnostic import Diagnostic, FlowError
from flowrl.graph.graph import Graph
from flowrl.spec import loads

EXAMPLES = Path(__file__).parents[2] / "examples"

GRPO = """
flowrl: 1
name: grpo
models: {policy: {source: some/model}}
data: {train: {source: rows.jsonl, prompt: question, keep: [entry]}}
roles:
  actor_train: {model: policy, backend: fsdp, update: {loss: ppo}}
  actor_infer: {model: policy, backend: hf, generate: {max_response_tokens: 5, temperature: 0.7}}
  reward: {function: "arithmetic.py:reward"}
  advantage: {estimator: grpo}
edges:
  - data.train -> actor_infer.generate
  - actor_infer.generate -> reward.score
  - reward.score -> advantage.estimate
  - advantage.estimate -> actor_train.update
  - actor_train => actor_infer
step: {prompts: 8, samples_per_prompt: 4, updates: 1}
"""

PPO = """
flowrl: 1
name: ppo
models: {policy: {source: some/model}, value: {source: some/model, head: scalar}}
data: {train: {source: rows.jsonl, prompt: question, keep: [entry]}}
roles:
  actor_train: {model: policy, backend: fsdp, update: {loss: ppo}}
  actor_infer: {model: policy, backend: hf, generate: {max_response_tokens: 5}}
  critic: {model: value, backend: fsdp, update: {loss: value}}
  reference: {model: policy, backend: fsdp}
  reward: {function: "arithmetic.py:reward"}
  advantage: {estimator: gae, kl: {coef: 0.01}}
edges:
  - data.train -> actor_infer.generate
  - actor_infer.generate -> reward.score, reference.log_probs, critic.values, actor_train.log_probs
  - reward.score, reference.log_probs, critic.values, actor_train.log_probs -> advantage.estimate
  - advantage.estimate -> actor_train.update, critic.update
  - actor_train => actor_infer
step: {prompts: 8, samples_per_prompt: 4, updates: 2}
"""


def lowered(text: str, stage: int = 0) -> Graph:
    return lower_stage(loads(text, folder=str(EXAMPLES)), stage)


def compiled(text: str, stage: int = 0) -> Graph:
    return run_passes(lowered(text, stage))[0]


def warnings(text: str) -> list[str]:
    return [diagnostic.code for diagnostic in run_passes(lowered(text))[1]]


def refused(text: str) -> list[Diagnostic]:
    """The diagnostics with which a flow is refused; none if it compiles."""
    try:
        compiled(text)
    except FlowError as error:
        return list(error.diagnostics)
    return []


def inputs(graph: Graph, op: str) -> dict[str, str]:
    """Slot → `producer.field` of one op."""
    return {i.slot: f"{i.source}.{i.field}" for i in graph.op(op).inputs}
