"""check_lengths, check_sampling, check_waits: told exactly where it is so; what a message says to write is not told."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from flowrl.compiler.passes.check_lengths import check_lengths, warn_episodes
from flowrl.diag.diagnostic import Diagnostic, FlowError
from flowrl.graph.graph import Graph, Op
from flowrl.graph.params import DataParams, EnvParams, GenerateParams
from tests.compiler.flows import GRPO, compiled, warnings

TURNS = """
flowrl: 1
name: turns
models: {policy: {source: some/model}}
data: {train: {seeds: 9}}
roles:
  actor_train: {model: policy, backend: fsdp, update: {loss: ppo, correction: {name: tis, cap: 2.0}}}
  actor_infer: {model: policy, backend: vllm, generate: {max_response_tokens: 8, max_turn_tokens: 2}}
  world: {kind: env, env: "gem:game:Sokoban-v0", max_turns: 4}
  advantage: {estimator: grpo}
edges:
  - data.train -> world.reset
  - actor_infer.generate <-> world.step
  - actor_infer.generate -> advantage.estimate
  - advantage.estimate -> actor_train.update
  - actor_train => actor_infer
step: {prompts: 8, samples_per_prompt: 4}
"""
TALK, ONCE = compiled(TURNS), compiled(GRPO)
tokens = st.integers(1, 40)


def with_lengths(graph: Graph, **lengths: int | None) -> Graph:
    """The graph with other lengths of its generator, data sets and environment."""

    def changed(op: Op) -> Op:
        known = {
            GenerateParams: ("max_response_tokens", "max_turn_tokens", "max_context_tokens"),
            DataParams: ("max_prompt_tokens",),
            EnvParams: ("max_turns",),
        }.get(type(op.params), ())
        new = {key: value for key, value in lengths.items() if key in known}
        return op if op.params is None else replace(op, params=replace(op.params, **new))

    return replace(graph, ops=tuple(map(changed, graph.ops)))


def refused(graph: Graph) -> tuple[Diagnostic, ...]:
    try:
        check_lengths(graph)
    except FlowError as error:
        return error.diagnostics
    return ()


def about(diagnostic: Diagnostic) -> str:
    """`a turn`, `a response` or `a prompt`."""
    texts = [label.text for label in diagnostic.labels] + list(diagnostic.notes)
    return " ".join(texts[0].split()[:2])


def edits(diagnostic: Diagnostic) -> list[dict[str, int]]:
    """The edits that the help names, each on its own."""
    found = re.findall(r"`(\w+): (\d+)`", " ".join(help.text for help in diagnostic.helps))
    assert found
    return [{key: int(value)} for key, value in found]


@given(tokens, st.none() | tokens, st.none() | tokens, st.none() | tokens)
def test_lengths_contradict_where_one_cannot_be_reached(
    response: int, turn: int | None, context: int | None, prompt: int | None
) -> None:
    """Write out the longest sample: a prompt, then tokens as long as turn, response and context allow."""
    lengths = {
        "max_response_tokens": response,
        "max_turn_tokens": turn,
        "max_context_tokens": context,
        "max_prompt_tokens": prompt,
    }
    room = range(1, 100) if context is None else range(1, context + 1)
    reached = turn is None or turn <= response
    reached = reached and response in room
    reached = reached and (prompt is None or context is None or any(prompt + made in room for made in range(1, 100)))
    found = refused(with_lengths(ONCE, **lengths))
    assert (found == ()) == reached
    assert {each.code for each in found} <= {"FR0242"}
    for each in found:
        left = [refused(with_lengths(ONCE, **(lengths | edit))) for edit in edits(each)]
        assert all(about(each) not in map(about, rest) for rest in left)


@given(st.integers(1, 12), tokens, tokens)
def test_an_episode_is_told_where_its_last_turn_is_cut(turns: int, turn: int, response: int) -> None:
    lengths = {"max_turns": turns, "max_turn_tokens": turn, "max_response_tokens": response}
    left = response
    for _ in range(turns):
        left -= turn
    found = warn_episodes(with_lengths(TALK, **lengths))
    assert bool(found) == (left < 0 and turn <= response)
    for edit in edits(found[0]) if found else []:
        assert not warn_episodes(with_lengths(TALK, **(lengths | edit))) or response < turns


@pytest.mark.parametrize(
    ("update", "generate", "lag", "told"),
    [
        ("loss: ppo", "temperature: 0.7", 0, []),
        ("loss: ppo", "temperature: 0.0", 0, ["FR0613"]),
        ("loss: ppo", "top_p: 0.9", 0, ["FR0612"]),
        ("loss: ppo", "top_k: -1", 0, []),
        ("loss: ppo, old_log_probs: recompute", "temperature: 0.7", 0, []),
        ("loss: ppo, old_log_probs: recompute, micro_batch_tokens: 512", "temperature: 0.7", 0, ["FR0610"]),
        ("loss: ppo, updates: 2, micro_batch_tokens: 512", "temperature: 0.7", 0, []),
        ("loss: ppo, old_log_probs: rollout", "temperature: 0.7", 0, []),
        ("loss: ppo, old_log_probs: rollout", "temperature: 0.7", 1, ["FR0611"]),
        ("loss: ppo, old_log_probs: rollout, correction: {name: tis, cap: 2.0}", "temperature: 0.7", 1, ["FR0603"]),
    ],
)
def test_sampling_is_told_where_a_ratio_is_not_what_it_seems(
    update: str, generate: str, lag: int, told: list[str]
) -> None:
    text = (
        GRPO.replace("loss: ppo", update).replace("temperature: 0.7", generate).replace("backend: hf", "backend: vllm")
    )
    assert warnings(text.replace("step:", f"schedule: {{max_lag: {lag}}}\nstep:")) == told


@pytest.mark.parametrize(
    ("lag", "edge", "told"),
    [
        (0, "", ["FR0603"]),
        (1, "", ["FR0614"]),
        (1, "timeout_seconds: 60", []),
    ],
)
def test_a_wait_has_an_end_where_generation_runs_ahead(lag: int, edge: str, told: list[str]) -> None:
    line = "- actor_infer.generate <-> world.step"
    text = TURNS.replace(line, f'- {{edge: "actor_infer.generate <-> world.step", {edge}}}') if edge else TURNS
    assert warnings(text.replace("step: {prompts", f"schedule: {{max_lag: {lag}}}\nstep: {{prompts")) == told
