"""A flow as a user writes it, lowered: ops, roles and models with their places, for frames of what only a run meets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from msgspec import structs

from flowrl.backends.contract import Call
from flowrl.compiler.lower.graph import lower_stage
from flowrl.compiler.passes.pipeline import run_passes
from flowrl.graph.graph import Graph
from flowrl.spec import loads

FLOW = """\
flowrl: 1
name: grpo
models:
  policy:
    source: {architecture: qwen2, tokenizer: characters, hidden_size: 64, layers: 2, heads: 2, kv_heads: 2,
             ffn_size: 96, max_positions: 96}
    dtype: float32
data:
  train: {source: rows.jsonl, prompt: question, max_prompt_tokens: 80}
roles:
  actor_train: {model: policy, backend: fsdp, optimizer: {name: adamw, lr: 1.0e-6}, update: {loss: ppo}}
  actor_infer: {model: policy, backend: hf, generate: {max_response_tokens: 16}}
  reward: {function: "flowrl:overlong", args: {max_tokens: 16, buffer_tokens: 4}}
  advantage: {estimator: grpo}
edges:
  - data.train -> actor_infer.generate
  - actor_infer.generate -> reward.score, actor_train.log_probs
  - reward.score, actor_train.log_probs -> advantage.estimate
  - advantage.estimate -> actor_train.update
  - actor_train => actor_infer
step: {prompts: 8, samples_per_prompt: 4}
"""

INLINE = """source: {architecture: qwen2, tokenizer: characters, hidden_size: 64, layers: 2, heads: 2, kv_heads: 2,
             ffn_size: 96, max_positions: 96}"""
FUNCTION = '"flowrl:overlong"'
REWARD = f"reward: {{function: {FUNCTION}, args: {{max_tokens: 16, buffer_tokens: 4}}}}"
TRAIN = "train: {source: rows.jsonl, prompt: question, max_prompt_tokens: 80}"
ANY_LENGTH = {TRAIN: "train: {source: rows.jsonl, prompt: question}"}
"""The compiler compares lengths that the flow gives; without them only a run meets a prompt that is too long."""


def placed(folder: Path, changes: dict[str, str] | None = None) -> Graph:
    """The one stage of FLOW, in which each key of `changes` is written as its value. Puts it into folder/flow.yaml."""
    text = FLOW
    for old, new in (changes or {}).items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    (folder / "flow.yaml").write_text(text)
    return run_passes(lower_stage(loads(text, "flow.yaml", str(folder)), 0))[0]


def at_its_place(call: Call, folder: Path, changes: dict[str, str] | None = None) -> Call:
    """`call` of an op that the flow has: with the places of the one in the flow."""
    written = placed(folder, changes).op(call.op.id)
    return replace(call, op=structs.replace(call.op, span=written.span, spans=written.spans))
