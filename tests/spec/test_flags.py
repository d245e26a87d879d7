"""`--set`: values, paths through stages and names, and where a flag is told to be wrong."""

from __future__ import annotations

import pytest

from flowrl.spec import OriginKind, loads
from flowrl.spec.schema import GeneratorRole
from tests.spec.flows import GRPO, STAGES, changed, codes, diagnostics_of


@pytest.mark.parametrize(
    ("flag", "section", "key", "wanted"),
    [
        ("step.prompts=16", "step", "prompts", 16),
        ("step.prompts = 16", "step", "prompts", 16),
        ("run.seed=3", "run", "seed", 3),
        ("run.loggers=[]", "run", "loggers", ()),
        ("schedule={max_lag: 1}", "schedule", "max_lag", 1),
    ],
)
def test_values_are_yaml(flag: str, section: str, key: str, wanted: object) -> None:
    assert getattr(getattr(loads(GRPO, sets=[flag]).stages[0], section), key) == wanted


def test_later_flags_win() -> None:
    assert loads(GRPO, sets=["step.prompts=16", "step.prompts=32"]).stages[0].step.prompts == 32


def test_labelled_and_new_keys() -> None:
    flags = ["roles.actor_infer.generate@val.temperature=0.0", "assume.actor_infer.generate.response_tokens=100"]
    stage = loads(GRPO, sets=flags).stages[0]
    role = stage.roles["actor_infer"]
    assert isinstance(role, GeneratorRole)
    assert role.labelled["val"].temperature == 0.0
    assert stage.assume["actor_infer.generate"].response_tokens == 100


def test_a_value_with_an_equals_sign() -> None:
    assert loads(GRPO, sets=['data.train.source="a=b.jsonl"']).stages[0].data["train"].source == "a=b.jsonl"


def test_a_flag_is_a_template_too() -> None:
    text = changed(GRPO, ("models:\n", "vars: {n: 4}\nmodels:\n"))
    assert loads(text, sets=['step.prompts="{{ 2 * n }}"']).stages[0].step.prompts == 8


@pytest.mark.parametrize("name", ["second", "1"])
def test_stages_by_name_or_number(name: str) -> None:
    assert loads(STAGES, sets=[f"stages.{name}.run.steps=3"]).stages[1].run.steps == 3


def test_a_shared_value_reaches_the_stages_that_leave_it_out() -> None:
    spec = loads(STAGES, sets=["run.steps=3"])
    assert [stage.run.steps for stage in spec.stages] == [3, 20]
    assert [stage.run.seed for stage in loads(STAGES, sets=["run.seed=1"]).stages] == [1, 1]


def test_origin_and_place() -> None:
    spec = loads(GRPO, sets=["run.seed=1", "step.prompts=16"])
    origin = spec.origins["step", "prompts"]
    assert origin.kind is OriginKind.FLAG
    assert origin.value is not None
    assert (origin.value.file, origin.value.line, origin.value.column, origin.value.end_column) == ("--set", 2, 14, 16)
    assert spec.text["--set"].split("\n")[1] == "step.prompts=16"


@pytest.mark.parametrize(
    ("flag", "code"),
    [
        ("", "FR0119"), ("step", "FR0119"), ("=1", "FR0119"), ("a..b=1", "FR0119"), ("step.prompts=[", "FR0119"),
        ("step.prompts={a: 1, a: 2}", "FR0119"),
        ("rolls.critic=1", "FR0103"), ("step.promts=1", "FR0103"), ("step.prompts=x", "FR0102"),
        ("step.prompts=", "FR0102"), ("step.prompts=0", "FR0104"),
        ("roles.critic.update.loss=value", "FR0120"), ("models.base.source=x", "FR0120"), ("vars.a=1", "FR0120"),
        ("edges.0.max_lag=1", "FR0120"), ("name.first=x", "FR0120"), ("stages.a.name=b", None),
    ],
)  # fmt: skip
def test_wrong_flags(flag: str, code: str | None) -> None:
    found = diagnostics_of(GRPO, (flag,))
    if code is not None:
        assert [diagnostic.code for diagnostic in found] == [code]
    assert all(diagnostic.labels[0].span.file == "--set" for diagnostic in found)


def test_a_flag_that_every_stage_overrides() -> None:
    text = STAGES.replace("use: sft\n    roles", "use: sft\n    run: {steps: 5}\n    roles", 1)
    assert codes(text, ("run.steps=3",)) == ["FR0122"]
