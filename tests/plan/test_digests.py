"""Digests: blind to spans and to orders that mean nothing, awake to everything else."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from flowrl.diag.span import Span
from flowrl.graph.graph import Graph
from flowrl.plan.digests import UNORDERED, digest, digest_file
from flowrl.program.program import Stream
from tests.placement.flows import PPO
from tests.placement.told import told_text
from tests.plan.strategies import values

GRAPH = told_text(PPO).graph
SLOW = settings(deadline=None, max_examples=15, suppress_health_check=list(HealthCheck))


def test_sha256_of_canonical_json() -> None:
    text = b'{\n  "a": 1,\n  "b": [\n    2,\n    "x"\n  ]\n}\n'
    assert digest({"b": (2, "x"), "a": 1}) == hashlib.sha256(text).hexdigest()


@given(st.randoms(use_true_random=False))
def test_order_in_a_graph_means_nothing(rng: Any) -> None:
    shuffled = {name: list(getattr(GRAPH, name)) for name in UNORDERED}
    for items in shuffled.values():
        rng.shuffle(items)
    assert digest(replace(GRAPH, **{name: tuple(items) for name, items in shuffled.items()})) == digest(GRAPH)


def test_comments_and_blank_lines_mean_nothing() -> None:
    moved = PPO.replace("roles:", "\n# all five roles of the card\n\nroles:").replace("step: {", "step:   {")
    other = told_text(moved).graph
    assert other != GRAPH, "spans differ"
    assert digest(other) == digest(GRAPH)


@SLOW
@given(values(Graph), values(Span))
def test_no_span_changes_a_digest(graph: Graph, span: Span) -> None:
    roles = tuple(replace(role, span=span) for role in graph.roles)
    ops = tuple(replace(op, span=None) for op in graph.ops)
    assert digest(replace(graph, roles=roles, ops=ops)) == digest(graph)


def test_what_means_something_changes_the_digest() -> None:
    seen = {digest(GRAPH)}
    changes = [
        PPO.replace("gae, kl: {coef: 0.001}", "gae, kl: {coef: 0.002}"),
        PPO.replace("prompts: 128", "prompts: 256"),
        PPO.replace("loss: ppo", "loss: ppo, clip_ratio: 0.3"),
        PPO.replace("max_response_tokens: 2048", "max_response_tokens: 2049"),
        PPO.replace("source: Qwen/Qwen2.5-7B}, value", "source: Qwen/Qwen2.5-7B, dtype: float32}, value"),
    ]
    for text in changes:
        seen.add(digest(told_text(text).graph))
    assert len(seen) == 1 + len(changes)


def test_an_assumption_of_the_planner_does_not() -> None:
    text = PPO + "assume: {actor_infer.generate: {response_tokens: 100}}\n"
    assert digest(told_text(text).graph) == digest(GRAPH)


def test_the_order_of_instructions_counts() -> None:
    one, other = (Stream(pool=name, instructions=()) for name in "ab")
    assert digest((one, other)) != digest((other, one))


def test_a_users_own_key_named_span_counts() -> None:
    assert digest({"args": {"span": 3}}) != digest({"args": {"span": 4}})


def test_digest_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "rewards.py").write_bytes(b"abc")
    assert digest_file(tmp_path / "rewards.py") == hashlib.sha256(b"abc").hexdigest()
    assert digest_file(tmp_path / "nowhere.py") is None
    assert digest_file(tmp_path) is None
