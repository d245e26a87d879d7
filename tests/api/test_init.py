"""`init`: the first files of a flow for every preset stand as they are written, and never over others."""

from __future__ import annotations

import runpy
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from flowrl import api
from flowrl.api.compile import check_spec
from flowrl.diag.diagnostic import FlowError
from flowrl.spec import load
from flowrl.spec.presets import preset_names
from flowrl.spec.starter import needs_of
from tests.spec.preset_flows import GIVEN


@cache
def validator() -> Any:
    return jsonschema.Draft202012Validator(api.schema())


@pytest.mark.parametrize("name", preset_names())
def test_a_starter_checks_and_fits_the_schema(name: str, tmp_path: Path) -> None:
    flow, *rest = api.init(name, tmp_path / "job")
    assert flow == tmp_path / "job" / f"{name}.yaml"
    assert [file.name for file in rest] == (["rewards.py"] if GIVEN[name][2] else [])
    assert check_spec(load(flow)).diagnostics == ()
    assert list(validator().iter_errors(yaml.safe_load(flow.read_text(encoding="utf-8")))) == []
    assert f"use: {name}\n" in flow.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["dapo", "safe_rlhf", "rm", "online_dpo"])
def test_a_starter_is_planned_and_fits(name: str, tmp_path: Path) -> None:
    flow = api.init(name, tmp_path)[0]
    assert api.plan(flow).verdict == "fits"
    assert api.check(flow).diagnostics == ()


@pytest.mark.parametrize("name", preset_names())
def test_what_a_starter_gives_is_what_the_preset_needs(name: str) -> None:
    models, data, roles = GIVEN[name]
    needs = needs_of(name)
    heads = {model.partition(":")[0]: "scalar" if "head: scalar" in model else "lm" for model in models}
    assert dict(needs.models) == heads
    assert (needs.function is not None) == bool(roles)
    assert {"response", "chosen", "rejected"} & set(needs.columns) == {
        key for key in ("response", "chosen", "rejected") if f"{key}:" in data
    }


def test_the_commented_values_may_be_uncommented(tmp_path: Path) -> None:
    flow = api.init("grpo", tmp_path)[0]
    text = flow.read_text(encoding="utf-8")
    head, _, body = text.partition("flowrl: 1")
    lines = [line.replace("# ", "", 1) if _is_value(line) else line for line in body.splitlines()]
    flow.write_text("\n".join([f"{head}flowrl: 1", *lines]))
    changed = sum(_is_value(line) for line in body.splitlines())
    assert changed == 3, "lr, longest response, step"
    assert check_spec(load(flow)).diagnostics == ()


def _is_value(line: str) -> bool:
    return line.lstrip().startswith(("# actor_", "# step:"))


def test_reward_functions_score(tmp_path: Path) -> None:
    score = runpy.run_path(str(api.init("grpo", tmp_path / "a")[1]))["score"]
    assert score(["it is 12", "13 "], ["12", "12"]) == [1.0, 0.0]
    signed = runpy.run_path(str(api.init("topr", tmp_path / "b")[1]))["score"]
    assert signed(["it is 12", "13"], ["12", 12]) == [1.0, -1.0]
    compare = runpy.run_path(str(api.init("online_dpo", tmp_path / "c")[1]))["compare"]
    assert compare(["p", "q", "p", "q"], ["long", "a", "b", "longer"]) == [0.0, 1.0, 1.0, 0.0]


def test_a_file_may_be_named(tmp_path: Path) -> None:
    flow = api.init("sft", tmp_path / "deep" / "warmup.yml")[0]
    assert flow == tmp_path / "deep" / "warmup.yml"
    assert "flowrl run warmup.yml" in flow.read_text(encoding="utf-8")


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "rewards.py").write_text("mine")
    with pytest.raises(FlowError) as caught:
        api.init("grpo", tmp_path)
    assert [d.code for d in caught.value.diagnostics] == ["FR0025"]
    assert (tmp_path / "rewards.py").read_text() == "mine"
    assert not (tmp_path / "grpo.yaml").exists()


def test_an_unknown_preset_has_a_near_name(tmp_path: Path) -> None:
    with pytest.raises(FlowError) as caught:
        api.init("gpro", tmp_path)
    assert caught.value.diagnostics[0].code == "FR0114"
    assert "grpo" in caught.value.diagnostics[0].helps[0].text
    assert list(tmp_path.iterdir()) == []
