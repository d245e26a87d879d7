"""A flow small enough to run with the real backends in a second: the quickstart with a tiny model and few steps."""

from __future__ import annotations

from pathlib import Path

from flowrl.api.compile import compile_spec
from flowrl.plan.plan import Plan
from flowrl.runtime.session import SessionOptions
from flowrl.spec import load

EXAMPLES = Path(__file__).parents[2] / "examples"
QUIET = SessionOptions(progress=False, threads=1)


def tiny_quickstart(*sets: str) -> Plan:
    """Two stages, warm-up and GRPO with validation, of a model of a few thousand parameters."""
    small = (
        "models.policy.source.hidden_size=32",
        "models.policy.source.layers=1",
        "models.policy.source.heads=2",
        "models.policy.source.kv_heads=2",
        "models.policy.source.ffn_size=32",
        "data.train.args.size=64",
        "data.val.args.size=8",
        "stages.0.step.prompts=8",
        "stages.0.run.steps=3",
        "stages.0.gate.at_least=0",
        "stages.0.gate.when=end",
        "stages.1.step.prompts=4",
        "stages.1.step.samples_per_prompt=3",
        "stages.1.run.steps=4",
        "stages.1.run.checkpoint_every_steps=2",
    )
    return compile_spec(load(EXAMPLES / "quickstart.yaml", (*small, *sets)))


def tiny_rewarded(name: str, data: str, rewards: str, step: str, steps: int) -> str:
    """The text of a flow of GRPO that looks at its reward: rows.jsonl with the keys `data`, and the lines `rewards` of
    its roles, of which the role `reward` scores."""
    return f"""\
flowrl: 1
name: {name}
cluster: {{gpu: cpu, nodes: 1, gpus_per_node: 2}}
models:
  policy:
    source: {{architecture: qwen2, tokenizer: bytes, hidden_size: 32, layers: 1, heads: 2, kv_heads: 2, ffn_size: 32,
             max_positions: 160}}
    dtype: float32
data: {{train: {{source: rows.jsonl, {data}, order: sequential, max_prompt_tokens: 64}}}}
roles:
  actor_train: {{model: policy, backend: fsdp, optimizer: {{name: sgd, lr: 1.0e-3}}, update: {{loss: ppo}}}}
  actor_infer: {{model: policy, backend: hf, generate: {{max_response_tokens: 4}}}}
{rewards}  advantage: {{estimator: grpo}}
edges:
  - data.train -> actor_infer.generate
  - actor_infer.generate -> reward.score
  - reward.score -> advantage.estimate
  - advantage.estimate -> actor_train.update
  - actor_train => actor_infer
step: {{{step}}}
run: {{steps: {steps}}}
"""
