"""Flows for tests of placement: GRPO and PPO with cards of real models, no files beside them."""

from __future__ import annotations

GRPO = """
flowrl: 1
name: grpo
cluster: {gpu: H100-80G, nodes: 2, gpus_per_node: 8}
models:
  policy: {source: Qwen/Qwen2.5-7B}
  rm: {source: Skywork/Skywork-Reward-V2-Llama-3.1-8B, head: scalar}
data: {train: {source: rows.jsonl, max_prompt_tokens: 1024}}
roles:
  actor_train: {model: policy, backend: fsdp, engine: {recompute: full}, update: {loss: ppo}}
  actor_infer: {model: policy, backend: vllm, generate: {max_response_tokens: 2048}}
  reward: {model: rm, backend: fsdp}
  advantage: {estimator: grpo}
edges:
  - data.train -> actor_infer.generate
  - actor_infer.generate -> reward.score
  - reward.score -> advantage.estimate
  - advantage.estimate -> actor_train.update
  - actor_train => actor_infer
step: {prompts: 128, samples_per_prompt: 8, updates: 2}
"""

PPO = """
flowrl: 1
name: ppo
cluster: {gpu: H100-80G, nodes: 2, gpus_per_node: 8}
models: {policy: {source: Qwen/Qwen2.5-7B}, value: {source: Qwen/Qwen2.5-7B, head: scalar}}
data: {train: {source: rows.jsonl, max_prompt_tokens: 1024}}
roles:
  actor_train: {model: policy, backend: fsdp, engine: {recompute: full}, update: {loss: ppo}}
  actor_infer: {model: policy, backend: vllm, generate: {max_response_tokens: 2048}}
  critic: {model: value, backend: fsdp, engine: {recompute: full}, update: {loss: value}}
  reference: {model: policy, backend: fsdp}
  reward: {function: "flowrl:overlong", args: {max_tokens: 2048, buffer_tokens: 512, penalty: 1.0}}
  advantage: {estimator: gae, kl: {coef: 0.001}}
edges:
  - data.train -> actor_infer.generate
  - actor_infer.generate -> reward.score, reference.log_probs, critic.values, actor_train.log_probs
  - reward.score, reference.log_probs, critic.values, actor_train.log_probs -> advantage.estimate
  - advantage.estimate -> actor_train.update, critic.update
  - actor_train => actor_infer
step: {prompts: 128, samples_per_prompt: 8, updates: 4}
"""


def with_placement(flow: str, placement: str) -> str:
    """`flow` with a placement section, given as one line of flow YAML."""
    return f"{flow}placement: {placement}\n"
