"""Texts that the tests of the front door start from."""

from __future__ import annotations

from flowrl.diag.diagnostic import Diagnostic, FlowError
from flowrl.spec import FlowSpec, loads

GRPO = """\
flowrl: 1
name: demo
models:
  policy: {source: Qwen/Qwen2.5-7B}
data:
  train: {source: train.jsonl}
roles:
  actor_train: {model: policy, backend: fsdp, update: {loss: ppo}}
  actor_infer: {model: policy, backend: vllm, generate: {max_response_tokens: 64}}
  reward: {function: "rewards.py:score"}
  advantage: {estimator: grpo}
edges:
  - data.train -> actor_infer.generate
  - actor_infer.generate -> reward.score
  - reward.score -> advantage.estimate
  - advantage.estimate -> actor_train.update
  - actor_train => actor_infer
step: {prompts: 8, samples_per_prompt: 4}
"""

STAGES = """\
flowrl: 1
name: demo
vars: {lr: 1e-3}
models:
  policy: {source: Qwen/Qwen2.5-7B, dtype: float32}
data:
  train: {source: train.jsonl, response: answer, max_prompt_tokens: 64}
run: {seed: 7, steps: 10}
stages:
  - name: first
    use: sft
    roles: {actor_train: {optimizer: {lr: "{{ lr }}"}}}
  - name: second
    use: sft
    vars: {lr: 5e-4}
    models: {policy: {source: stages.first.actor_train}}
    data: {train: {max_prompt_tokens: 128}}
    roles: {actor_train: {optimizer: {lr: "{{ lr }}"}}}
    run: {steps: 20}
"""


def changed(text: str, *pairs: tuple[str, str]) -> str:
    for old, new in pairs:
        assert old in text, old
        text = text.replace(old, new, 1)
    return text


def diagnostics_of(text: str, sets: tuple[str, ...] = ()) -> tuple[Diagnostic, ...]:
    try:
        loads(text, sets=sets)
    except FlowError as error:
        return error.diagnostics
    return ()


def codes(text: str, sets: tuple[str, ...] = ()) -> list[str]:
    return [diagnostic.code for diagnostic in diagnostics_of(text, sets)]


def edges_of(spec: FlowSpec) -> list[str]:
    return [edge.text for edge in spec.stages[0].edges]
