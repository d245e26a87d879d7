"""The runs that are struck: a flow, small enough to step in well under a second, and the role whose process ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from msgspec import structs

from flowrl.api.compile import compile_spec
from flowrl.plan.plan import Plan
from flowrl.spec import load, loads

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
CHECKPOINT_EVERY_STEPS = 3
PROMPTS, SAMPLES = 4, 3
_MODELS = ("policy", "value")
_SMALL = ("hidden_size=32", "layers=1", "heads=2", "kv_heads=2")


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    role: str
    plan: Callable[[int], Plan]
    """Of so many steps."""
    flow: str
    """Scenarios of one flow have one undisturbed run."""
    max_lag: int = 0


def ppo(steps: int) -> Plan:
    """All five roles of PPO, the generator and the trainers on pools of their own."""
    pools = (
        "{rollout: {gpus: 1, roles: [actor_infer]}, train: {gpus: 1, roles: [actor_train, reference]},"
        " values: {gpus: 1, roles: [critic]}}"
    )
    sets = [f"models.{model}.source.{size}" for model in _MODELS for size in _SMALL]
    sets += [f"placement.pools={pools}", "cluster=3xcpu", *_lengths(steps)]
    return compile_spec(load(EXAMPLES / "ppo.yaml", tuple(sets)))


def colocated(steps: int) -> Plan:
    """The same, all roles with a model on one device."""
    sets = [f"models.{model}.source.{size}" for model in _MODELS for size in _SMALL]
    pools = "{all: {gpus: 1, roles: [actor_train, actor_infer, critic, reference]}}"
    sets += [f"placement.pools={pools}", "cluster=1xcpu", *_lengths(steps)]
    return compile_spec(load(EXAMPLES / "ppo.yaml", tuple(sets)))


def late(steps: int) -> Plan:
    """GRPO of which generation runs a step ahead."""
    return _grpo(steps, "hf", "schedule: {max_lag: 1}")


def vllm(steps: int) -> Plan:
    """GRPO with the real vLLM."""
    return _grpo(steps, "vllm", "")


def _lengths(steps: int) -> list[str]:
    return [
        f"step.prompts={PROMPTS}",
        f"step.samples_per_prompt={SAMPLES}",
        f"run.steps={steps}",
        f"run.checkpoint_every_steps={CHECKPOINT_EVERY_STEPS}",
    ]


_GRPO = """
flowrl: 1
name: grpo
models:
  policy:
    source: {{architecture: qwen2, tokenizer: characters, hidden_size: 32, layers: 1, heads: 1, kv_heads: 1,
             ffn_size: 64, max_positions: 64, tie_embeddings: true}}
    dtype: float32
data:
  train: {{source: "arithmetic.py:problems", args: {{seed: 1, size: 2000}}, prompt: question, keep: [entry],
          max_prompt_tokens: 8}}
roles:
  actor_train: {{model: policy, backend: fsdp, optimizer: {{name: adamw, lr: 1.0e-2}}, update: {{loss: ppo}}}}
  actor_infer: {{model: policy, backend: {backend}, generate: {{max_response_tokens: 5, temperature: 1.0}}}}
  reward: {{function: "arithmetic.py:partial_credit"}}
  advantage: {{estimator: grpo}}
edges:
  - data.train -> actor_infer.generate
  - actor_infer.generate -> reward.score
  - reward.score -> advantage.estimate
  - advantage.estimate -> actor_train.update
  - actor_train => actor_infer
step: {{prompts: {prompts}, samples_per_prompt: {samples}}}
{schedule}
placement: {{pools: {{rollout: {{gpus: 1, roles: [actor_infer]}}, train: {{gpus: 1, roles: [actor_train]}}}}}}
cluster: 2xcpu
run: {{steps: {steps}, checkpoint_every_steps: {every}, samples_logged: 4}}
"""


def _grpo(steps: int, backend: str, schedule: str) -> Plan:
    text = _GRPO.format(
        backend=backend,
        prompts=PROMPTS,
        samples=SAMPLES,
        schedule=schedule,
        steps=steps,
        every=CHECKPOINT_EVERY_STEPS,
    )
    made = compile_spec(loads(text, folder=str(EXAMPLES)))
    return structs.replace(made, folder=str(EXAMPLES))


ROLES = ("actor_train", "actor_infer", "critic", "reference", "reward", "data.train", "advantage")
SCENARIOS = {
    each.name: each
    for each in (
        *(Scenario(f"ppo/{role}", role, ppo, "ppo") for role in ROLES),
        *(Scenario(f"colocated/{role}", role, colocated, "colocated") for role in ("actor_infer", "actor_train")),
        *(Scenario(f"lag1/{role}", role, late, "lag1", max_lag=1) for role in ("actor_infer", "actor_train")),
        *(Scenario(f"vllm/{role}", role, vllm, "vllm") for role in ("actor_infer", "actor_train")),
    )
}  # fmt: skip
