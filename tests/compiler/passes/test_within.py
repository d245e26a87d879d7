"""`keep_top` ranks samples among all of the step, or `within: group` among those of one prompt."""

from __future__ import annotations

import pytest

from flowrl.diag.diagnostic import Diagnostic
from flowrl.graph.rates import rows_per_step
from flowrl.graph.types import Granularity
from tests.compiler.flows import compiled, refused

FLOW = """
flowrl: 1
name: best
models: {policy: {source: some/model}}
data: {train: {source: rows.jsonl, prompt: question, keep: [entry]}}
roles:
  actor_train: {model: policy, backend: fsdp, update: {loss: sft}}
  actor_infer: {model: policy, backend: vllm, generate: {max_response_tokens: 8}}
  reward: {function: "arithmetic.py:reward"}
  best: {kind: filter, rule: threshold, unit: sample, KEEP}
edges:
  - data.train -> actor_infer.generate
  - actor_infer.generate -> reward.score
  - reward.score -> best.select
  - best.select -> actor_train.update
  - actor_train => actor_infer
step: {prompts: 6, samples_per_prompt: 4}
"""


@pytest.mark.parametrize(
    ("keep", "rows", "unit"),
    [
        ("keep_top: 0.5, within: group", 12, Granularity.GROUP),
        ("keep_top: 0.25, within: group", 6, Granularity.GROUP),
        ("keep_top: 0.75, within: group", 18, Granularity.GROUP),
        ("keep_top: 0.125", 3, Granularity.STEP),
        ("keep_top: 0.25, within: step", 6, Granularity.STEP),
    ],
)
def test_rows_that_stay(keep: str, rows: int, unit: Granularity) -> None:
    graph = compiled(FLOW.replace("KEEP", keep))
    assert rows_per_step(graph, graph.op("actor_train.update")).fixed == rows
    assert graph.op("best.select").granularity is unit


def test_a_share_is_whole_in_its_group() -> None:
    """An eighth of 24 samples is 3, of the 4 of a prompt half a sample."""
    found = told("keep_top: 0.125, within: group")
    assert found.code == "FR0313"
    assert "0.5" in found.labels[0].text
    assert "4 samples of a prompt" in found.labels[0].text
    help_ = " ".join(help.text for help in found.helps)
    assert "keep_top 0.25" in help_
    assert "samples_per_prompt 8" in help_


def told(keep: str) -> Diagnostic:
    (found,) = refused(FLOW.replace("KEEP", keep))
    return found


@pytest.mark.parametrize("keep", ["min: 0.5, within: group", "keep_top: 0.5, unit: group, within: group"])
def test_nothing_to_rank_within(keep: str) -> None:
    text = FLOW.replace("unit: sample, KEEP", keep if "unit" in keep else f"unit: sample, {keep}")
    assert [fault.code for fault in refused(text)] == ["FR0240"]
