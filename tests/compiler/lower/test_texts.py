"""Ops over responses that a data set gives read text, and make tokens of it themselves."""

from __future__ import annotations

import pytest

from flowrl.graph.graph import Graph
from flowrl.graph.rates import rows_per_step
from tests.compiler.flows import compiled, refused

DPO = """
flowrl: 1
name: offline-dpo
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


def reads(graph: Graph, op: str) -> dict[str, str | None]:
    return {input.slot: input.source for input in graph.op(op).inputs}


def test_pairs_of_a_data_set_train_a_policy() -> None:
    graph = compiled(DPO)
    assert reads(graph, "reference.log_probs") == {"prompt": "data.train", "response": "data.train"}
    assert reads(graph, "actor_train.update") == {
        "prompt": "data.train",
        "response": "data.train",
        "pair_sign": "data.train",
        "ref_log_probs": "reference.log_probs",
    }
    assert rows_per_step(graph, graph.op("actor_train.update")).fixed == 16


def test_below_a_generator_tokens_stay_tokens() -> None:
    text = DPO.replace(
        "reference: {", "actor_infer: {model: policy, backend: vllm, generate: {max_response_tokens: 8}}\n"
        "  pairs: {kind: estimator, estimator: best_worst}\n"
        '  reward: {function: "arithmetic.py:reward"}\n  reference: {',
    ).replace(", chosen: better, rejected: worse", ", keep: [entry], response: given")  # fmt: skip
    text = text.replace(
        "  - data.train -> reference.log_probs\n",
        "  - data.train -> actor_infer.generate\n  - actor_infer.generate -> reward.score, reference.log_probs\n"
        "  - reward.score -> pairs.estimate\n  - pairs.estimate -> actor_train.update\n"
        "  - actor_train => actor_infer\n",
    ).replace("prompts: 8", "prompts: 8, samples_per_prompt: 2")
    graph = compiled(text)
    assert reads(graph, "reference.log_probs") == dict.fromkeys(("tokens", "loss_mask"), "actor_infer.generate")
    assert reads(graph, "actor_train.update")["tokens"] == "actor_infer.generate"


@pytest.mark.parametrize("given", ["", ", keep: [entry]"])
def test_without_a_response_tokens_are_missing(given: str) -> None:
    text = DPO.replace(", chosen: better, rejected: worse", given)
    missing = [fault for fault in refused(text) if fault.code == "FR0206"]
    assert any("`tokens`" in fault.labels[0].text for fault in missing)
