"""A plan whose numbers are known by hand: one pool of two devices, a trainer and a generator."""

from __future__ import annotations

from functools import lru_cache

from flowrl.api.compile import compile_spec
from flowrl.plan.plan import Plan
from flowrl.spec import loads

FLOW = """
flowrl: 1
name: small
cluster: {gpu: H100-80G, nodes: 1, gpus_per_node: 2}
models: {policy: {source: Qwen/Qwen2.5-0.5B}, value: {source: Qwen/Qwen2.5-0.5B, head: scalar}}
data: {train: {source: train.jsonl, max_prompt_tokens: 256}}
roles:
  actor_train: {model: policy, backend: fsdp, update: {loss: ppo, micro_batch_tokens: 4096}}
  actor_infer: {model: policy, backend: vllm, generate: {max_response_tokens: 512}, engine: {kv_fraction: 0.6}}
  critic: {model: value, backend: fsdp, update: {loss: value}}
  reward: {function: "flowrl:overlong", args: {max_tokens: 512, buffer_tokens: 128}}
  advantage: {estimator: gae}
edges:
  - data.train -> actor_infer.generate
  - actor_infer.generate -> reward.score, critic.values
  - reward.score, critic.values -> advantage.estimate
  - advantage.estimate -> actor_train.update, critic.update
  - actor_train => actor_infer
step: {prompts: 32, updates: 2}
run: {steps: 10}
placement: colocated
"""


@lru_cache(maxsize=1)
def small() -> Plan:
    return compile_spec(loads(FLOW))
