"""Flows whose maths no placement may change, tiny, and every placement of their roles on three slots of a CPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from flowrl.api.compile import compile_spec
from flowrl.plan.plan import Plan
from flowrl.spec import load
from tests.runtime.tiny_flow import EXAMPLES

SLOTS = 3
STEPS = 4
MODEL = (
    "{architecture: qwen2, tokenizer: characters, hidden_size: 32, layers: 1, heads: 2, kv_heads: 2, ffn_size: 32,"
    " max_positions: 64, tie_embeddings: true}"
)
OVER = f"""
models:
  policy: {{source: {MODEL}, dtype: float32}}
  value: {{source: {MODEL}, head: scalar, dtype: float32}}
data:
  train: {{source: "{EXAMPLES}/arithmetic.py:problems", args: {{seed: 1, size: 64}}, prompt: question, keep: [entry],
           max_prompt_tokens: 8}}
cluster: {SLOTS}xcpu
run: {{steps: {STEPS}, checkpoint_every_steps: {STEPS}, samples_logged: 4}}
"""
REWARD = f'reward: {{function: "{EXAMPLES}/arithmetic.py:partial_credit"}}'
INFER = "actor_infer: {backend: hf, generate: {max_response_tokens: 6}}"
TRAIN = "actor_train: {optimizer: {lr: 1.0e-2}}"

FLOWS: Mapping[str, str] = {
    "ppo": f"""use: ppo
step: {{prompts: 4, samples_per_prompt: 3, updates: 2}}
roles: {{{INFER}, {TRAIN}, {REWARD}}}
""",
    "grpo": f"""use: grpo
step: {{prompts: 4, samples_per_prompt: 3, updates: 2}}
roles: {{{INFER}, {TRAIN}, {REWARD}}}
""",
    # Groups that teach nothing are dropped and nothing is drawn in their place: one update of what is left.
    "dapo": f"""use: dapo
vars: {{max_response_tokens: 6, overlong_buffer_tokens: 3}}
step: {{prompts: 4, samples_per_prompt: 3, updates: 1, refill: null}}
roles: {{{INFER.replace("generate: {max_response_tokens: 6}", "generate: {temperature: 1.0}")}, {TRAIN}, {REWARD}}}
""",
    # And with refill: rounds end by what has been scored, so they are the same wherever that was done.
    "dapo_refilled": f"""use: dapo
vars: {{max_response_tokens: 6, overlong_buffer_tokens: 3}}
step: {{prompts: 4, samples_per_prompt: 3, updates: 2, refill: {{max_rounds: 9, oversample: 1.5}}}}
roles: {{{INFER.replace("generate: {max_response_tokens: 6}", "generate: {temperature: 1.0}")}, {TRAIN}, {REWARD}}}
""",
    "async_grpo_lag_0": f"""use: grpo
step: {{prompts: 4, samples_per_prompt: 3, updates: 2}}
schedule: {{max_lag: 0, takes: 2}}
roles: {{{INFER}, {TRAIN}, {REWARD}}}
""",
}
ROLES: Mapping[str, tuple[str, ...]] = {
    "ppo": ("actor_train", "actor_infer", "critic", "reference"),
    "grpo": ("actor_train", "actor_infer", "reference"),
    "dapo": ("actor_train", "actor_infer"),
    "dapo_refilled": ("actor_train", "actor_infer"),
    "async_grpo_lag_0": ("actor_train", "actor_infer", "reference"),
}
"""The roles that need a slot."""


def partitions(roles: Sequence[str], most: int = SLOTS) -> Iterator[tuple[tuple[str, ...], ...]]:
    """Every way to share roles out to at most so many pools, all together first."""
    if not roles:
        yield ()
        return
    first, *rest = roles
    for parts in partitions(rest, most):
        for place, part in enumerate(parts):
            yield (*parts[:place], (first, *part), *parts[place + 1 :])
        if len(parts) < most:
            yield ((first,), *parts)


def named(parts: Sequence[Sequence[str]]) -> str:
    """`actor_train+critic | actor_infer`."""
    return " | ".join("+".join(part) for part in parts)


def placed(flow: str, parts: Sequence[Sequence[str]], folder: Path) -> Plan:
    """The flow with a pool of one slot for each part."""
    pools = ", ".join(f"p{i}: {{gpus: 1, roles: [{', '.join(part)}]}}" for i, part in enumerate(parts))
    path = folder / f"{flow}.yaml"
    path.write_text(f"flowrl: 1\nname: {flow}\n{FLOWS[flow]}{OVER}placement: {{pools: {{{pools}}}}}\n")
    return compile_spec(load(path))
