"""Flows over pairs and given responses, a teacher's likeliest tokens and mixes, whole and tiny, with the real backends.

What a step must do is known beforehand: at the reference the loss of DPO is log 2, a reward model that starts at zero
loses log 2 a pair, and a student that is its teacher has lost nothing.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from flowrl.api.compile import compile_spec
from flowrl.api.preflight import preflight
from flowrl.runtime.run import RunOptions, run
from flowrl.spec import loads
from tests.runtime.runs import lines_of
from tests.runtime.tiny_flow import QUIET

HEAD = """flowrl: 1
name: given
models:
  policy:
    source: {architecture: qwen2, tokenizer: characters, hidden_size: 32, layers: 1, heads: 2, ffn_size: 32,
             max_positions: 64, tie_embeddings: true}
    dtype: float32
  scores:
    source: {architecture: qwen2, tokenizer: characters, hidden_size: 32, layers: 1, heads: 2, ffn_size: 32,
             max_positions: 64, tie_embeddings: true}
    dtype: float32
    head: scalar
data:
  train: {source: rows.jsonl, prompt: q, chosen: good, rejected: bad, max_prompt_tokens: 16}
  asked: {source: rows.jsonl, prompt: q, max_prompt_tokens: 3, on_long: drop}
  given: {source: rows.jsonl, prompt: q, response: good, keep: [n]}
  other: {source: rows.jsonl, prompt: q, response: bad}
  mixed: {mix: {given: 0.75, other: 0.25}, tag: from}
run: {steps: 3, seed: 0}
"""
TRAIN = "{model: policy, backend: fsdp, optimizer: {name: adamw, lr: 3.0e-3}"


def run_flow(folder: Path, text: str) -> list[dict[str, float]]:
    """The metrics of each step."""
    rows = [{"q": "ab" * (1 + n % 2), "good": "yes", "bad": "no", "n": n} for n in range(12)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    # No two responses are likely to score the same: ties are no preference.
    (folder / "rewards.py").write_text(
        "def score(response):\n    return [float(sum(map(ord, text)) % 97) for text in response]\n"
    )
    plan = compile_spec(loads(HEAD + text, "flow.yaml", str(folder)))
    preflight(plan)
    result = run(plan, RunOptions(runs=folder / "runs", session=QUIET))
    return lines_of(result.folder / "metrics.jsonl")  # type: ignore[return-value]


def column(lines: list[dict[str, float]], name: str) -> list[float]:
    return [line[name] for line in lines]


def test_offline_dpo_starts_at_the_reference_and_prefers(tmp_path: Path) -> None:
    lines = run_flow(
        tmp_path,
        f"""
roles:
  actor_train: {TRAIN}, update: {{loss: dpo, beta: 0.5, micro_batch_tokens: 16}}}}
  reference: {{model: policy, backend: fsdp}}
edges:
  - data.train -> reference.log_probs
  - reference.log_probs -> actor_train.update
step: {{prompts: 4}}
""",
    )
    losses = column(lines, "actor_train.loss")
    assert losses[0] == pytest.approx(math.log(2), abs=1e-5)
    assert losses == sorted(losses, reverse=True)
    assert column(lines, "actor_train.accuracy")[-1] == 1.0
    assert [round(line["seconds"] * line["samples_per_second"]) for line in lines] == [8, 8, 8]


def test_a_reward_model_learns_its_pairs(tmp_path: Path) -> None:
    lines = run_flow(
        tmp_path,
        """
roles:
  reward_train:
    {kind: trainer, model: scores, backend: fsdp, optimizer: {lr: 3.0e-3}, update: {loss: bradley_terry}}
edges: [data.train -> reward_train.update]
step: {prompts: 4, updates: 2}
""",
    )
    losses = column(lines, "reward_train.loss")
    assert losses[0] < math.log(2)
    assert losses[-1] < losses[0]
    assert column(lines, "reward_train.margin")[-1] > 0


def test_online_dpo_of_best_and_worst(tmp_path: Path) -> None:
    lines = run_flow(
        tmp_path,
        f"""
roles:
  actor_train: {TRAIN}, update: {{loss: dpo, beta: 0.5}}}}
  actor_infer: {{model: policy, backend: hf, generate: {{max_response_tokens: 6}}}}
  reference: {{model: policy, backend: fsdp}}
  reward: {{function: "rewards.py:score"}}
  pairs: {{kind: estimator, estimator: best_worst}}
edges:
  - data.asked -> actor_infer.generate
  - actor_infer.generate -> reward.score, reference.log_probs
  - reward.score -> pairs.estimate
  - pairs.estimate, reference.log_probs -> actor_train.update
  - actor_train => actor_infer
step: {{prompts: 4, samples_per_prompt: 4, updates: 2}}
""",
    )
    assert column(lines, "actor_train.loss")[0] != column(lines, "actor_train.loss")[-1]
    assert [round(line["seconds"] * line["samples_per_second"]) for line in lines] == [8, 8, 8]
    # Half of the prompts have four characters, one more than may be.
    assert column(lines, "data.asked.dropped_rows") == [6.0] * 3


def test_a_student_that_is_its_teacher_has_lost_nothing(tmp_path: Path) -> None:
    text = f"""
roles:
  actor_train: {TRAIN}, update: {{loss: distill}}}}
  actor_infer: {{model: policy, backend: hf, generate: {{max_response_tokens: 6}}}}
  teacher: {{kind: scorer, model: policy, backend: fsdp, top_k: 5}}
edges:
  - data.asked -> actor_infer.generate
  - actor_infer.generate -> teacher.log_probs
  - teacher.log_probs -> actor_train.update
  - actor_train => actor_infer
step: {{prompts: 4, samples_per_prompt: 2}}
"""
    lines = run_flow(tmp_path, text)
    assert column(lines, "actor_train.loss")[0] == pytest.approx(0.0, abs=1e-5)
    assert 5 / 98 < column(lines, "actor_train.top_mass")[0] <= 1.0


def test_a_critic_of_given_responses_and_a_mix(tmp_path: Path) -> None:
    lines = run_flow(
        tmp_path,
        f"""
roles:
  actor_train: {TRAIN}, update: {{loss: sft}}}}
edges: [data.mixed -> actor_train.update]
step: {{prompts: 8}}
""",
    )
    losses = column(lines, "actor_train.loss")
    assert losses == sorted(losses, reverse=True)
