"""YAML → Flow → YAML → Flow is the identity of documents, on the shipped flows and on drawn ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl.spec import FlowBuilder, FlowSpec, load, loads, to_yaml
from tests.spec.flows import GRPO, STAGES, changed

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = sorted([*(ROOT / "examples").glob("*.yaml"), *(ROOT / "examples" / "flows").glob("*.yaml")])


def again(spec: FlowSpec) -> FlowSpec:
    return loads(to_yaml(spec))


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.name)
def test_shipped_flows(file: Path) -> None:
    spec = load(file)
    found = again(spec)
    assert found.document == spec.document
    assert found.stages == spec.stages
    assert to_yaml(found) == to_yaml(spec)


@pytest.mark.parametrize("text", [GRPO, STAGES], ids=["grpo", "stages"])
def test_flags_presets_and_variables_are_worked_in(text: str) -> None:
    spec = loads(text, sets=["run.seed=5"])
    written = yaml.safe_load(to_yaml(spec))
    assert written["run"]["seed"] == 5
    assert "use" not in to_yaml(spec)
    assert again(spec).stages == spec.stages


awkward = st.sampled_from(
    ["1e-6", "on", "null", "~", "0x1f", ".inf", "1:30", "<<", "- a", "a: b", "a #b", "#", "'", '"', "\\", " a ", "",
     "*a", "&a", "!a", "%", "@", "`", "a\nb", "a\n", "\ta", "é名", "😀", "{{ a }}", "{% if %}", "{#", "}}", "{", "?"]
)  # fmt: skip


@settings(max_examples=60)
@given(st.dictionaries(awkward.filter(bool), awkward | st.lists(awkward, max_size=3), max_size=4))
def test_texts_that_yaml_or_jinja_would_read_otherwise(arguments: dict[str, Any]) -> None:
    """Built in Python, where no text is a template: what comes back is the same text."""
    flow = FlowBuilder("demo", folder=".")
    policy = flow.model("policy", "Qwen/Qwen2.5-7B")
    actor = flow.trainer("actor_train", policy, loss="sft")
    actor.update(flow.data("train", "tasks.py:rows", args={"x": arguments}))
    flow.step(prompts=8)
    spec = flow.spec()
    assert spec.document.data["train"].args == {"x": arguments}
    assert again(spec).document == spec.document


def test_edges_are_a_block_list_and_kinds_by_name_are_left_out() -> None:
    long = "  - {edge: data.train -> reward.score, start_step: 2}\n"
    text = to_yaml(loads(changed(GRPO, ("  - actor_train", f"{long}  - actor_train"))))
    assert "edges:\n  - data.train -> actor_infer.generate\n" in text
    assert long in text
    assert "kind" not in text


def test_defaults_are_left_out() -> None:
    assert len(to_yaml(loads(GRPO))) < len(json.dumps(loads(GRPO).document.model_dump(mode="json"))) / 3
