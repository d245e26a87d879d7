"""The flow that the plans of fakes stand for, as somebody would have written it, and where each part of it stands."""

from __future__ import annotations

from msgspec import structs

from flowrl.diag.span import Span
from flowrl.graph.graph import Graph

FILE = "ppo.yaml"
FLOW = """\
flowrl: 1
name: ppo
models: {policy: Qwen/Qwen3-0.6B}
roles:
  actor_train: {model: policy, loss: ppo}
  actor_infer: {model: policy, generate: {max_response_tokens: 5}}
  reward: {function: "fake.py:fake"}
  advantage: {estimator: grpo}
data: {train: prompts.jsonl, val: prompts.jsonl}
dataflow:
  - data -> actor_infer -> reward -> advantage -> actor_train
  - actor_train => actor_infer
step: {prompts: 4, samples_per_prompt: 3}
gate: {metric: reward.rewards@val, at_least: 0.3, at_most: 0.9}
"""
TEXTS = {FILE: FLOW}


def place(text: str) -> Span:
    """Where FLOW has `text` first."""
    before = FLOW[: FLOW.index(text)]
    line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
    return Span(FILE, line, column, line, column + len(text))


def written(graph: Graph) -> Graph:
    """The graph as lowered from FLOW: roles, ops and weights edges know their places."""
    roles = tuple(structs.replace(role, span=place(role.name.partition(".")[0])) for role in graph.roles)
    places = {role.name: role.span for role in roles}
    edges = tuple(structs.replace(e, span=place(e.id)) if e.id in FLOW else e for e in graph.edges)
    ops = tuple(structs.replace(op, span=places[op.role]) for op in graph.ops)
    return structs.replace(graph, roles=roles, ops=ops, edges=edges, declared=edges)
