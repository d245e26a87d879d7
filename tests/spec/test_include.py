"""`include`: files merged in their order under the file that names them, each value with its place in its own file."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl.api.sources import sources_of
from flowrl.diag.diagnostic import Diagnostic, FlowError
from flowrl.spec import FlowSpec, OriginKind, load, loads, to_yaml
from flowrl.spec.include import DEEPEST, MOST
from flowrl.spec.presets import preset_names
from tests.spec.flows import edges_of
from tests.spec.preset_flows import minimal

HEAD = "flowrl: 1\nname: demo\n"
SFT = "models: {policy: {source: some/model}}\ndata: {train: {source: rows.jsonl, response: answer}}\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(files: Mapping[str, str]) -> None:
    for name, text in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text, encoding="utf-8")


def faults(file: str = "flow.yaml", sets: tuple[str, ...] = ()) -> tuple[Diagnostic, ...]:
    with pytest.raises(FlowError) as caught:
        load(file, sets)
    return caught.value.diagnostics


def test_preset_then_includes_in_order_then_own_keys_then_flags(folder: Path) -> None:
    write(
        {
            "flow.yaml": f"{HEAD}include: [a.yaml, b.yaml]\n{SFT}run: {{steps: 3}}\n",
            "a.yaml": "use: sft\nstep: {prompts: 2}\nrun: {steps: 1, seed: 1, keep: 1, checkpoint_every_steps: 1}\n",
            "b.yaml": "run: {steps: 2, seed: 2, keep: 2}\n",
        }
    )
    spec = load("flow.yaml", ["run.keep=4"])
    run = spec.document.run
    assert (run.checkpoint_every_steps, run.seed, run.steps, run.keep) == (1, 2, 3, 4)
    assert spec.document.step is not None
    assert spec.document.step.prompts == 2, "the preset has 64"
    assert spec.document.include == ()
    found = {key: spec.origin_of("run", key) for key in ("checkpoint_every_steps", "seed", "steps", "keep", "loggers")}
    assert [origin.kind for origin in found.values()] == [
        OriginKind.INCLUDE, OriginKind.INCLUDE, OriginKind.FILE, OriginKind.FLAG, OriginKind.DEFAULT
    ]  # fmt: skip
    places = [str(found[key].value) for key in ("checkpoint_every_steps", "seed", "steps")]
    assert places == ["a.yaml:3:59", "b.yaml:1:23", "flow.yaml:6:14"]
    assert set(spec.text) == {"flow.yaml", "a.yaml", "b.yaml", "preset:sft", "--set"}


def test_paths_start_at_the_including_file(folder: Path) -> None:
    write(
        {
            "jobs/flow.yaml": f"{HEAD}include: [../shared/base.yaml]\n{SFT}",
            "shared/base.yaml": "include: [parts/step.yaml]\nuse: sft\n",
            "shared/parts/step.yaml": "step: {prompts: 4}\n",
        }
    )
    spec = load("jobs/flow.yaml")
    assert str(spec.span("step", "prompts")) == f"{os.path.join('shared', 'parts', 'step.yaml')}:1:17"


def test_edges_add_and_are_removed(folder: Path) -> None:
    write(
        {
            "flow.yaml": f"{HEAD}use: grpo\ninclude: [val.yaml]\n"
            "models: {policy: {source: some/model}}\n"
            'roles: {reward: {function: "r.py:f"}}\n'
            "edges:\n  - {edge: actor_infer.generate@val -> reward.score@val, remove: true}\n",
            "val.yaml": "data: {train: {source: a.jsonl}, val: {source: b.jsonl}}\n"
            "edges:\n  - data.val -> actor_infer.generate@val\n  - actor_infer.generate@val -> reward.score@val\n",
        }
    )
    edges = edges_of(load("flow.yaml"))
    assert edges[-2:] == ["actor_train => actor_infer", "data.val -> actor_infer.generate@val"]


def test_stages_include(folder: Path) -> None:
    write(
        {
            "flow.yaml": f"{HEAD}{SFT}stages:\n  - {{name: one, include: [sft.yaml]}}\n"
            "  - {name: two, include: [sft.yaml], step: {prompts: 2}}\n",
            "sft.yaml": "use: sft\nstep: {prompts: 8, epochs: 2}\n",
        }
    )
    spec = load("flow.yaml")
    assert [(stage.step.prompts, stage.step.epochs) for stage in spec.stages] == [(8, 2), (2, 2)]
    assert str(spec.span("stages", 0, "step", "prompts")) == "sft.yaml:2:17"


def test_variables_and_merges_of_included_files(folder: Path) -> None:
    write(
        {
            "flow.yaml": f"{HEAD}include: [base.yaml]\n{SFT}vars: {{size: 6}}\n",
            "base.yaml": "use: sft\nvars: {size: 2, rate: 1e-4}\n"
            "step: {prompts: \"{{ size }}\", epochs: '{{ oops }}'}\n"
            "roles: {actor_train: {optimizer: &opt {lr: '{{ rate }}'}}}\n",
        }
    )
    (undefined,) = faults()
    assert undefined.code == "FR0115"
    assert str(undefined.labels[0].span) == "base.yaml:3:43"
    fixed = Path("base.yaml").read_text().replace("oops", "size")
    Path("base.yaml").write_text(fixed)
    spec = load("flow.yaml")
    assert spec.stages[0].step.prompts == 6


def test_a_fault_of_an_included_file_shows_its_lines(folder: Path) -> None:
    write({"flow.yaml": f"{HEAD}include: [base.yaml]\n{SFT}", "base.yaml": "use: sft\nstep: {promts: 4}\n"})
    (fault,) = faults()
    assert (fault.code, str(fault.labels[0].span)) == ("FR0103", "base.yaml:2:8")
    assert fault.helps[0].replacement == "step: {prompts: 4}"


def test_an_unreadable_included_file_is_told_with_the_place_that_names_it(folder: Path) -> None:
    write({"flow.yaml": f"{HEAD}include: [base.yaml]\n{SFT}", "base.yaml": "a: b: c\n"})
    (fault,) = faults()
    assert [str(label.span) for label in fault.labels] == ["base.yaml:1:5", "flow.yaml:3:11"]
    Path("base.yaml").write_bytes(b"name: \xff\n")
    (fault,) = faults()
    assert (fault.code, [str(label.span) for label in fault.labels]) == ("FR0003", ["flow.yaml:3:11"])


def test_a_link_to_itself_is_a_circle(folder: Path) -> None:
    write({"flow.yaml": f"{HEAD}include: [same.yaml]\n{SFT}"})
    os.symlink("flow.yaml", "same.yaml")
    assert [fault.code for fault in faults()] == ["FR0020"]


def test_a_file_may_lie_under_two_others(folder: Path) -> None:
    write(
        {
            "flow.yaml": f"{HEAD}include: [a.yaml, b.yaml]\n{SFT}",
            "a.yaml": "include: [base.yaml]\n",
            "b.yaml": "include: [base.yaml]\n",
            "base.yaml": "use: sft\n",
        }
    )
    assert load("flow.yaml").document.roles.keys() == {"actor_train"}


def test_files_that_double_at_each_level_end(folder: Path) -> None:
    files = {f"f{i}.yaml": f"include: [f{i + 1}.yaml, f{i + 1}.yaml]\n" for i in range(1, DEEPEST)}
    last = {f"f{DEEPEST}.yaml": "use: sft\n", "flow.yaml": f"{HEAD}include: [f1.yaml]\n{SFT}"}
    write({**files, **last})
    assert 2 ** (DEEPEST - 1) > MOST
    assert [fault.code for fault in faults()] == ["FR0022"]


def test_a_pipe_is_not_waited_for(folder: Path) -> None:
    os.mkfifo("pipe.yaml")
    write({"flow.yaml": f"{HEAD}include: [pipe.yaml]\n{SFT}"})
    assert [fault.code for fault in faults()] == ["FR0023"]


def test_no_flag_names_files(folder: Path) -> None:
    write({"flow.yaml": f"{HEAD}use: sft\n{SFT}", "base.yaml": "step: {prompts: 2}\n"})
    (fault,) = faults(sets=("include=[base.yaml]",))
    assert fault.code == "FR0120"


def again(spec: FlowSpec) -> FlowSpec:
    return loads(to_yaml(spec), folder=spec.folder)


@st.composite
def cut(draw: st.DrawFn, flow: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A mapping cut in two that merge to it: keys go below or above, and what lies below may be overridden."""
    below: dict[str, Any] = {}
    above: dict[str, Any] = {}
    for key, value in flow.items():
        way = draw(st.sampled_from(("below", "above", "both")))
        if way == "both" and isinstance(value, dict) and value:
            below[key], above[key] = draw(cut(value))
        elif way == "both":
            below[key], above[key] = "overridden", value
        else:
            (below if way == "below" else above)[key] = value
    return below, above


WHOLE: Mapping[str, Any] = {
    "use": "grpo",
    "models": {"policy": {"source": "some/model", "dtype": "float32"}},
    "data": {"train": {"source": "rows.jsonl", "keep": ["answer"], "order": "sequential"}},
    "roles": {
        "reward": {"function": "r.py:f"},
        "actor_train": {"optimizer": {"lr": 1e-5}, "update": {"clip_ratio": {"low": 0.1, "high": 0.3}}},
        "late": {"kind": "filter", "rule": "zero_spread"},
    },
    "step": {"prompts": 16, "refill": {"max_rounds": 2}},
    "run": {"steps": 7},
}


@given(cut(WHOLE), st.data())
@settings(max_examples=60, deadline=None)
def test_a_flow_cut_into_files_is_the_flow(parts: tuple[dict[str, Any], dict[str, Any]], data: st.DataObject) -> None:
    below, above = parts
    first, second = data.draw(cut(below))
    whole = loads(json.dumps({"flowrl": 1, "name": "demo", **WHOLE}))
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "a.yaml").write_text(json.dumps(first or {"vars": {}}))
        Path(folder, "b.yaml").write_text(json.dumps(second or {"vars": {}}))
        text = json.dumps({"flowrl": 1, "name": "demo", "include": ["a.yaml", "b.yaml"], **above})
        spec = loads(text, folder=folder)
    assert spec.document.model_dump(exclude={"vars"}) == whole.document.model_dump(exclude={"vars"})
    assert again(spec).document == spec.document


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_comes_back_from_yaml(name: str) -> None:
    spec = loads(minimal(name))
    found = again(spec)
    assert (found.document, found.stages) == (spec.document, spec.stages)
    assert to_yaml(found) == to_yaml(spec)


def test_a_plan_lists_the_files_but_does_not_need_them(folder: Path) -> None:
    write(
        {
            "jobs/flow.yaml": f"{HEAD}include: [../base.yaml]\n{SFT}",
            "base.yaml": "use: sft\nstep: {prompts: 4}\n",
        }
    )
    found = [(source.role, source.path) for source in sources_of(load("jobs/flow.yaml"), ())]
    assert found == [("flow", "flow.yaml"), ("include", os.path.join("..", "base.yaml"))]
