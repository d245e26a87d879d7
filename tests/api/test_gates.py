"""A gate waits for a metric that something reports, also after the passes took away what nothing reads."""

from __future__ import annotations

import pytest

from flowrl.api.compile import check_spec
from flowrl.spec import loads

FLOW = """
flowrl: 1
name: staged
models: {policy: {source: some/model}}
data: {train: {seeds: 9}, val: {seeds: 3}}
stages:
  - name: first
    roles: &roles
      actor_train: {model: policy, backend: fsdp, update: {loss: ppoKL}}
      actor_infer: {model: policy, backend: vllm, generate: {max_response_tokens: 8}}
      reference: {model: policy, backend: fsdp}
      world: {kind: env, env: "gem:game:Sokoban-v0", max_turns: 2}
      advantage: {estimator: grpo}
    edges: &edges
      - data.train -> world.reset
      - data.val -> world.reset@val
      - actor_infer.generate <-> world.step
      - actor_infer.generate@val <-> world.step@val
      - actor_infer.generate -> advantage.estimate, reference.log_probs
      - advantage.estimate, reference.log_probs -> actor_train.update
      - actor_train => actor_infer
    step: {prompts: 8, samples_per_prompt: 4}
    gate: {metric: METRIC, at_least: 0.5}
  - {name: second, roles: *roles, edges: *edges, step: {prompts: 8, samples_per_prompt: 4}}
"""
KL = ", kl: {coef: 0.1}"


@pytest.mark.parametrize(
    ("metric", "kl", "found"),
    [
        ("world.success@val", "", []),
        ("world.rewards", "", []),
        ("reference.ref_log_probs", KL, []),
        ("reference.ref_log_probs", "", ["FR0130"]),
        ("actor_infer.response", "", ["FR0130"]),
        ("actor_infer.response_tokens@val", "", []),
    ],
)
def test_a_gate_is_on_what_stays(metric: str, kl: str, found: list[str]) -> None:
    checked = check_spec(loads(FLOW.replace("METRIC", metric).replace("KL", kl)))
    assert [d.code for d in checked.diagnostics if d.severity == "error"] == found
