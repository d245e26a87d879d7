"""One flow of user functions for tests of the constructs: roles and edges are swapped in by name."""

from __future__ import annotations

from pathlib import Path

from flowrl.compiler.lower.graph import lower_stage
from flowrl.compiler.passes.pipeline import run_passes
from flowrl.diag.diagnostic import FlowError
from flowrl.graph.graph import Graph
from flowrl.spec import loads

CODE = """
def exact(response, answer): ...
def style(prompt, response): ...
def process(turn_rewards): ...
def solver(response, transcript, answer): ...
def winner(prompt, response, hint=None): ...
def rewrite(prompt): ...
def weigh(tokens, advantages): ...
def lengths(response): ...
def whole(rewards): ...
def hard(rewards, limit): ...
def verdict(reply): ...
def old(old_log_probs): ...
def spread(rewards, entropy=None, old_log_probs=None): ...
async def slow(response): ...
def drafts(response, draft): ...
"""
HEAD = """
flowrl: 1
name: any
models:
  policy: {source: some/model}
  value: {source: some/model, head: scalar}
  teacher: {source: big/model}
  judge_lm: {source: big/judge}
  adapted: {source: some/model, lora: {rank: 8, alpha: 16}}
  painter: {source: some/painter, head: denoiser}
data:
  train: {source: rows.jsonl, prompt: question, keep: [answer]}
  val: {source: val.jsonl, prompt: question, keep: [answer]}
  pictures: {source: pictures.jsonl, prompt: question, images: photos, keep: [answer]}
  pairs: {source: pairs.jsonl, prompt: question, chosen: good, rejected: bad}
  seeds: {seeds: 100}
"""
ROLES = {
    "actor_train": "{model: policy, backend: fsdp, update: {loss: ppo}}",
    "actor_infer": "{model: policy, backend: vllm, generate: {max_response_tokens: 64}}",
    "reward": '{function: "f.py:exact"}',
    "advantage": "{estimator: grpo}",
}
EDGES = (
    "data.train -> actor_infer.generate",
    "actor_infer.generate -> reward.score",
    "reward.score -> advantage.estimate",
    "advantage.estimate -> actor_train.update",
    "actor_train => actor_infer",
)
GEN = "actor_infer.generate"


def flow(edges: tuple[str, ...] = EDGES, head: str = HEAD, step: str = "", **roles: str) -> str:
    written = {**ROLES, **roles}
    lines = [f"  {name}: {role}" for name, role in written.items() if role]
    drawn = [f"  - {edge}" for edge in edges]
    size = step or "{prompts: 8, samples_per_prompt: 4}"
    return "\n".join([head, "roles:", *lines, "edges:", *drawn, f"step: {size}", ""])


def compiled(folder: Path, text: str) -> Graph:
    return run_passes(lower_stage(loads(text, folder=str(folder)), 0))[0]


def codes(folder: Path, text: str) -> list[str]:
    try:
        compiled(folder, text)
    except FlowError as error:
        return [diagnostic.code for diagnostic in error.diagnostics]
    return []


def units(graph: Graph, op: str) -> dict[str, tuple[str, str]]:
    return {field.name: (str(field.unit), field.dtype) for field in graph.op(op).outputs}
