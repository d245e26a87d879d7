"""The digest of a graph: a key of the maths changes it, a spelling of the same flow does not."""

from __future__ import annotations

import pytest

from flowrl.graph.text import graph_digest
from tests.compiler.flows import GRPO, compiled

PAIRS = """
flowrl: 1
name: pairs
models: {policy: {source: some/model}}
data: {train: {source: rows.jsonl, prompt: question, chosen: better, rejected: worse}}
roles:
  actor_train: {model: policy, backend: fsdp, update: {loss: dpo, beta: 0.1}}
  reference: {model: policy, backend: fsdp}
edges:
  - data.train -> reference.log_probs
  - reference.log_probs -> actor_train.update
step: {prompts: 8}
"""
SYNC = "  - actor_train => actor_infer\n"


@pytest.mark.parametrize("key", ["better", "worse", "question"])
def test_a_column_of_pairs_is_maths(key: str) -> None:
    assert graph_digest(compiled(PAIRS.replace(key, "other"))) != graph_digest(compiled(PAIRS))


@pytest.mark.parametrize("attribute", ["every_steps: 1", "start_step: 0", "max_lag: 0", "every_updates: 1"])
def test_a_default_of_a_weights_edge_may_be_written(attribute: str) -> None:
    """One update a step: publishing after each of them is publishing once a step."""
    written = GRPO.replace(SYNC, f"  - {{edge: actor_train => actor_infer, {attribute}}}\n")
    assert graph_digest(compiled(written)) == graph_digest(compiled(GRPO))


@pytest.mark.parametrize("attribute", ["every_steps: 2", "start_step: 1", "max_lag: 1"])
def test_another_age_of_weights_is_another_flow(attribute: str) -> None:
    written = GRPO.replace(SYNC, f"  - {{edge: actor_train => actor_infer, {attribute}}}\n")
    assert graph_digest(compiled(written)) != graph_digest(compiled(GRPO))
