"""Flows in which every key of the language can stand; told nothing as they are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

ROWS = Path(__file__).with_name("rows.jsonl")
"""Rows with responses, for keys that read them."""

SHAPE = """{architecture: qwen2, tokenizer: characters, hidden_size: 64, layers: 2, heads: 4, kv_heads: 2, ffn_size: 96,
  max_positions: 64, tie_embeddings: false}"""

RL = f"""
flowrl: 1
name: rl
cluster: {{gpu: cpu, nodes: 1, gpus_per_node: 4}}
models:
  policy: {{source: {SHAPE}, lora: {{rank: 8, alpha: 16}}}}
  value: {{source: {SHAPE}, head: scalar}}
data:
  train: {{source: "arithmetic.py:problems", args: {{seed: 1, size: 9}}, prompt: question,
          keep: [entry], max_prompt_tokens: 8}}
  val: {{source: "{ROWS}", prompt: question, response: answer, keep: [entry], max_prompt_tokens: 8}}
roles:
  actor_train:
    model: policy
    backend: fsdp
    optimizer: {{name: adamw}}
    update: {{loss: ppo, kl: {{coef: 0.1}}, correction: {{name: tis, cap: 2.0}}}}
  actor_infer:
    model: policy
    backend: vllm
    generate: {{max_response_tokens: 8}}
    generate@val: {{temperature: 0.5}}
  critic: {{model: value, backend: fsdp, update: {{loss: value, clip_value: 0.2}}}}
  reference: {{model: policy, backend: fsdp, top_k: 4}}
  reward: {{function: "arithmetic.py:reward", timeout_seconds: 5}}
  scored: {{kind: reward, model: value, backend: fsdp}}
  keepers: {{kind: filter, rule: threshold, by: reward.rewards, min: 0.5}}
  advantage: {{estimator: gae, kl: {{coef: 0.1}}}}
edges:
  - data.train -> actor_infer.generate
  - actor_infer.generate -> reward.score, reference.log_probs, critic.values, scored.score
  - reward.score -> keepers.select
  - keepers.select, reference.log_probs, critic.values -> advantage.estimate
  - {{edge: "advantage.estimate -> actor_train.update", timeout_seconds: 60}}
  - advantage.estimate -> critic.update
  - actor_train => actor_infer
  - data.val -> actor_infer.generate@val
  - actor_infer.generate@val -> reward.score@val
step: {{prompts: 8, samples_per_prompt: 4, updates: 2, refill: {{max_rounds: 2}}}}
schedule: {{max_lag: 1, takes: 2}}
placement:
  pools:
    train: {{gpus: 2, roles: [actor_train, critic, reference, scored]}}
    rollout: {{gpus: 2, roles: [actor_infer], layouts: {{actor_infer: {{tp: 1}}}}}}
assume:
  actor_infer.generate: {{response_tokens: {{mean: 4, p99: 6}}}}
run: {{steps: 10, checkpoint_every_steps: 5}}
"""

TALK = f"""
flowrl: 1
name: talk
cluster: {{groups: {{near: {{gpu: H100-80G, gpus_per_node: 8}}}}, links: {{node_bytes_per_second: 1.0e+9}}}}
models: {{policy: {{source: {SHAPE}}}}}
data: {{train: {{seeds: 100}}}}
roles:
  actor_train: {{model: policy, backend: fsdp, update: {{loss: ppo}}}}
  actor_infer: {{model: policy, backend: vllm, generate: {{max_response_tokens: 32, max_turn_tokens: 8}}}}
  world: {{kind: env, env: "gem:game:Sokoban-v0", max_turns: 4}}
  advantage: {{estimator: gigpo}}
edges:
  - data.train -> world.reset
  - actor_infer.generate <-> world.step
  - actor_infer.generate -> advantage.estimate
  - advantage.estimate -> actor_train.update
  - actor_train => actor_infer
step: {{prompts: 8, samples_per_prompt: 4}}
assume: {{world.step: {{seconds: 1.0, turns: 2}}}}
"""

JUDGED = f"""
flowrl: 1
name: judged
models: {{policy: {{source: {SHAPE}}}, judge: {{source: {SHAPE}}}}}
data:
  a: {{source: a.jsonl, keep: [tests], max_prompt_tokens: 8}}
  b: {{source: b.jsonl, keep: [tests], max_prompt_tokens: 8}}
  train: {{mix: {{a: 0.5, b: 0.5}}, tag: domain}}
roles:
  actor_train: {{model: policy, backend: fsdp, update: {{loss: ppo}}}}
  actor_infer: {{model: policy, backend: vllm, generate: {{max_response_tokens: 8}}}}
  asked: {{kind: reward, judge: {{template: flows/judge.j2, parse: "flows/judge.py:score"}}, model: judge,
           backend: vllm, generate: {{max_response_tokens: 4}}}}
  boxed: {{kind: reward, sandbox: {{image: py311, tests: tests}}}}
  routed: {{kind: reward, router: {{by: domain, routes: {{a: asked, b: boxed}}}}}}
  longer: {{kind: function, function: "arithmetic.py:problems", outputs: {{length: {{unit: sample, dtype: i32}}}}}}
  advantage: {{estimator: grpo}}
edges:
  - data.train -> actor_infer.generate
  - actor_infer.generate -> routed.score
  - routed.score -> longer.call
  - longer.call -> advantage.estimate
  - advantage.estimate -> actor_train.update
  - actor_train => actor_infer
step: {{prompts: 8, samples_per_prompt: 4}}
"""

PAIRS = f"""
flowrl: 1
name: pairs
models: {{policy: {{source: {SHAPE}}}}}
data: {{train: {{source: rows.jsonl, chosen: better, rejected: worse}}}}
roles:
  actor_train: {{model: policy, backend: fsdp, update: {{loss: dpo, beta: 0.1}}}}
  reference: {{model: policy, backend: fsdp}}
edges:
  - data.train -> reference.log_probs
  - reference.log_probs -> actor_train.update
step: {{prompts: 8}}
"""

IMAGES = """
flowrl: 1
name: images
models: {policy: {source: black-forest-labs/FLUX.1-dev, head: denoiser}}
data: {train: {source: rows.jsonl, prompt: text}}
roles:
  actor_train: {model: policy, backend: fsdp, update: {loss: ppo}}
  actor_infer: {model: policy, backend: diffusers, generate: {denoise_steps: 4}, generate@val: {eta: 0.1}}
  reward: {function: "arithmetic.py:reward", inputs: {entry: data.train.text}}
  advantage: {estimator: grpo}
edges:
  - data.train -> actor_infer.generate
  - actor_infer.generate -> reward.score
  - data.train -> actor_infer.generate@val
  - actor_infer.generate@val -> reward.score@val
  - reward.score -> advantage.estimate
  - advantage.estimate -> actor_train.update
  - actor_train => actor_infer
step: {prompts: 8, samples_per_prompt: 4}
"""

BASES: Mapping[str, str] = {"rl": RL, "talk": TALK, "judged": JUDGED, "pairs": PAIRS, "images": IMAGES}
