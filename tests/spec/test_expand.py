"""`expand` with origins: each value of the resolved flow on a line, with where it came from; the text is the flow."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from pydantic import BaseModel

from flowrl import api
from flowrl.api.compile import check_spec
from flowrl.api.digests import flow_digest
from flowrl.compiler.lower.effects import idle
from flowrl.graph.signatures import LOSSES
from flowrl.spec import FlowSpec, load, loads
from flowrl.spec.expand import expanded
from flowrl.spec.presets import preset_names
from tests.spec.preset_flows import EXAMPLES, minimal
from tests.spec.strategies import flow_texts

ROOT = Path(__file__).resolve().parents[2]
FLOWS = sorted([*(ROOT / "examples").glob("*.yaml"), *(ROOT / "examples" / "flows").glob("*.yaml")])
ENTRY = re.compile(r"(?P<text>.*?)\s+# (?P<origin>default|--set|preset \w+:\d+|\S+:\d+)\Z")


def lines_of(spec: FlowSpec) -> dict[str, str]:
    """Line without its comment → the comment."""
    found = [ENTRY.match(line) for line in expanded(spec, idle(spec)).splitlines()]
    return {match["text"].strip(): match["origin"] for match in found if match is not None}


def assert_same(spec: FlowSpec, idle_too: bool = False) -> None:
    text = expanded(spec, () if idle_too else idle(spec))
    again = loads(text, folder=spec.folder)
    assert (again.document, again.stages) == (spec.document, spec.stages)


@pytest.mark.parametrize("file", FLOWS, ids=lambda file: file.stem)
def test_an_example_is_what_it_expands_to(file: Path) -> None:
    assert_same(load(file))


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_is_what_it_expands_to(name: str) -> None:
    """Also to the check, which refuses keys that change nothing."""
    spec = loads(minimal(name), folder=EXAMPLES)
    assert_same(spec)
    text = expanded(spec, idle(spec))
    assert check_spec(loads(text, folder=EXAMPLES)).diagnostics == ()


@given(flow_texts())
@settings(max_examples=20, deadline=None)
def test_any_flow_is_what_it_expands_to(text: str) -> None:
    assert_same(loads(text), idle_too=True)


def test_each_value_says_where_it_came_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("base.yaml").write_text("use: grpo\n\nrun: {steps: 9}\n")
    Path("flow.yaml").write_text(
        "flowrl: 1\nname: demo\ninclude: [base.yaml]\nmodels: {policy: {source: some/model}}\n"
        "data: {train: {source: rows.jsonl, keep: [a, b]}}\n"
        'roles: {reward: {function: "r.py:f"}}\n'
        "edges:\n  - {edge: actor_train => actor_infer, max_lag: 1}\n"
    )
    found = lines_of(load("flow.yaml", ["step.prompts=4", "roles.actor_train.optimizer.lr=1e-5"]))
    grpo = (ROOT / "flowrl" / "presets" / "grpo.yaml").read_text().splitlines()
    loss = next(number for number, line in enumerate(grpo, start=1) if "loss: ppo" in line)
    assert found["loss: ppo"] == f"preset grpo:{loss}"
    assert found["steps: 9"] == "base.yaml:3"
    assert found["prompts: 4"] == "--set"
    assert found["lr: 1e-05"] == "--set"
    assert found["- a"] == "flow.yaml:5"
    assert found["function: r.py:f"] == "flow.yaml:6"
    assert found["max_lag: 1"] == "flow.yaml:8"
    assert found["epochs: 1"] == "default"
    assert found["kind: trainer"] == "default"
    assert found["placement: auto"] == "default"
    assert found["- reward.score -> advantage.estimate"].startswith("preset grpo:")


def test_every_value_of_the_document_is_shown() -> None:
    """Every leaf that somebody wrote, and every default that is not empty and has an effect."""
    spec = loads(minimal("ppo"), folder=EXAMPLES)
    text = expanded(spec)
    for path, value in leaves(spec.document, ()):
        if value not in (None, (), {}) and "edges" not in path and "labelled" not in path:
            assert f"{path[-1]}: " in text, path


def leaves(value: object, path: tuple[str, ...]) -> list[tuple[tuple[str, ...], object]]:
    if isinstance(value, BaseModel):
        value = {name: getattr(value, name) for name in type(value).model_fields}
    if isinstance(value, dict) and value:
        return [leaf for key, item in value.items() for leaf in leaves(item, (*path, str(key)))]
    return [] if isinstance(value, tuple) else [(path, value)]


def test_what_a_stage_inherits_stands_once() -> None:
    spec = load(ROOT / "examples" / "flows" / "09-mobile-r1-stages.yaml")
    text = expanded(spec, idle(spec))
    assert text.count("seed: 0") == 1
    assert text.count("gpu: H100-80G") == 1


def test_the_api_expands(tmp_path: Path) -> None:
    file = tmp_path / "flow.yaml"
    file.write_text(minimal("sft"))
    assert "# default" in api.expand(file, origins=True)
    assert "#" not in api.expand(file)
    assert "prompts: 2  " in api.expand(file, sets=["step.prompts=2"], origins=True)


def test_a_key_of_a_preset_that_an_override_leaves_idle_is_not_written(tmp_path: Path) -> None:
    """`clip_ratio` of the preset is for its loss; under another loss it would be refused as the user's own (FR0240)."""
    (tmp_path / "arithmetic.py").write_text("def reward(response, entry):\n    return response\n", encoding="utf-8")
    file = tmp_path / "flow.yaml"
    file.write_text(minimal("dr_grpo"), encoding="utf-8")
    sets = ["roles.actor_train.update.loss=reinforce", "cluster=8xH100-80G"]
    assert not [d for d in api.check(file, sets=sets).diagnostics if d.severity == "error"]
    for origins in (False, True):
        text = api.expand(file, sets=sets, origins=origins)
        assert "clip_ratio" not in text
        written = tmp_path / "expanded.yaml"
        written.write_text(text, encoding="utf-8")
        assert not [d for d in api.check(written).diagnostics if d.severity == "error"]


@pytest.mark.parametrize(
    "loss", sorted(name for name, loss in LOSSES.items() if loss.head == "lm" and name != "distill")
)
def test_a_preset_under_another_loss_is_still_the_flow_it_expands_to(loss: str) -> None:
    """What the preset wrote for its own loss is in neither graph."""
    compared = 0
    for name in preset_names():
        if name == "rm":  # trains no policy
            continue
        spec = loads(minimal(name), sets=["roles.actor_train.update.loss=" + loss], folder=EXAMPLES)
        checked = check_spec(spec)
        if checked.graphs:
            again = check_spec(loads(expanded(spec, idle(spec)), folder=EXAMPLES))
            assert flow_digest(spec, checked.graphs) == flow_digest(spec, again.graphs)
            compared += 1
    assert compared
