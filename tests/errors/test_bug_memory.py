"""Reports about memory, as far as the present planner answers them: flows with their devices, models and lengths."""

from __future__ import annotations

import pytest

from flowrl.api.compile import compile_spec
from flowrl.spec import loads

PPO = """
flowrl: 1
name: memory
cluster: {gpu: DEVICE, nodes: 1, gpus_per_node: GPUS}
models: {policy: {source: MODEL}, value: {source: MODEL, head: scalar}}
data: {train: {source: train.jsonl, max_prompt_tokens: 1024}}
roles:
  actor_train: {model: policy, backend: fsdp, update: {loss: ppo, micro_batch_tokens: TOKENS}, engine: {offload: MAY}}
  actor_infer: {model: policy, backend: vllm, generate: {max_response_tokens: LENGTH}, engine: {kv_fraction: SHARE}}
  critic: {model: value, backend: fsdp, update: {loss: value, micro_batch_tokens: TOKENS}, engine: {offload: MAY}}
  reference: {model: policy, backend: fsdp, micro_batch_tokens: TOKENS}
  reward: {function: "flowrl:overlong", args: {max_tokens: LENGTH, buffer_tokens: 128}}
  advantage: {estimator: gae, kl: {coef: 0.01}}
edges:
  - data.train -> actor_infer.generate
  - actor_infer.generate -> reward.score, critic.values, reference.log_probs
  - reward.score, critic.values, reference.log_probs -> advantage.estimate
  - advantage.estimate -> actor_train.update, critic.update
  - actor_train => actor_infer
step: {prompts: 128}
placement:
  pools:
    all:
      gpus: GPUS
      roles: [actor_train, actor_infer, critic, reference]
      layouts: {actor_train: {tp: 1}, critic: {tp: 1}, reference: {tp: 1}}
"""
"""Trainers are cut by data alone, as in the reports; placement of itself would cut what does not fit so."""

BASE = {"DEVICE": "H100-80G", "GPUS": 8, "TOKENS": 16384, "MAY": "null", "LENGTH": 1024, "SHARE": 0.85}


@pytest.mark.parametrize(
    ("changes", "phase"),
    [
        # OpenRLHF#858: four models of 8B on four cards of 48 GB
        ({"DEVICE": "L40S", "GPUS": 4, "MODEL": "meta-llama/Meta-Llama-3-8B"}, "actor_train.update"),
        # NeMo-RL#3793: policy, value model and engine of 1.5B on one card, and nothing may leave it
        ({"GPUS": 1, "MODEL": "Qwen/Qwen2.5-1.5B", "MAY": "false"}, "actor_infer.generate"),
        # trl#2688: the engine takes 0.9 of cards that also train
        ({"MODEL": "Qwen/Qwen2.5-7B", "MAY": "false", "SHARE": 0.9}, "actor_infer.generate"),
        # NeMo-RL#456: log-probs of eight samples of 16,384 tokens over a large vocabulary at once
        (
            {"MODEL": "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", "LENGTH": 15360, "TOKENS": 131072},
            "actor_train.update",
        ),
        # slime#1237: a token budget that only long answers, which come later, fill
        ({"MODEL": "meta-llama/Meta-Llama-3-8B", "LENGTH": 8192, "TOKENS": 65536}, "actor_train.update"),
    ],
)
def test_flow_does_not_fit(changes: dict[str, object], phase: str) -> None:
    flow = PPO
    for name, value in {**BASE, **changes}.items():
        flow = flow.replace(name, str(value))
    plan = compile_spec(loads(flow))
    assert plan.verdict == "infeasible"
    assert "FR0501" in {diagnostic.code for diagnostic in plan.diagnostics}
    tightest = max(plan.stages[0].memory, key=lambda entry: entry.peak_bytes / entry.limit_bytes)
    assert tightest.phase == phase
