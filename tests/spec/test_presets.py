"""Presets: merged as LANGUAGE says, complete once the user gives what they ask for, each value with its origin."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from flowrl.compiler.lower.graph import lower_stage
from flowrl.diag.diagnostic import FlowError
from flowrl.spec import OriginKind, load, loads
from flowrl.spec.presets import FOLDER, preset_head, preset_names, preset_text
from flowrl.spec.schema import GeneratorRole, RewardRole, TrainerRole
from tests.spec.flows import edges_of
from tests.spec.preset_flows import EXAMPLES, GIVEN, REWARD, minimal

ROOT = Path(__file__).resolve().parents[2]


def test_the_presets() -> None:
    assert preset_names() == sorted(GIVEN)
    assert len(GIVEN) == 19


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_is_a_flow_once_its_gaps_are_filled(name: str) -> None:
    spec = loads(minimal(name))
    written = loads(preset_without_use(name))
    assert spec.document.roles == written.document.roles
    assert spec.document.edges == written.document.edges
    assert spec.document.step == written.document.step


def preset_without_use(name: str) -> str:
    """The text of the preset with what the minimal flow gives written into it by hand."""
    given = minimal(name).partition(f"use: {name}\n")[2].partition("roles:")[0]
    reward = REWARD.partition("{")[2].rstrip("}")
    body = preset_text(name).replace("  reward:\n    kind: reward\n", f"  reward:\n    {reward}\n")
    return body + given


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_says_what_one_must_give(name: str) -> None:
    """Exactly that: without any of it the flow is refused."""
    head = preset_head(name)
    models, data, roles = GIVEN[name]
    named = set(re.findall(r"models\.(\w+)", head.give))
    assert named == {model.partition(":")[0] for model in models}
    assert ("roles.reward" in head.give) == bool(roles)
    assert "data.train" in head.give
    assert {key for key in ("response", "chosen", "rejected") if f"`{key}:`" in head.give} == {
        key for key in ("response", "chosen", "rejected") if f"{key}:" in data
    }
    for gap in (*named, *(["reward"] if roles else [])):
        assert refusals(name, gap) == {"FR0203" if gap != "reward" else "FR0106"}


def refusals(name: str, without: str) -> set[str]:
    try:
        lower_stage(loads(minimal(name, without), folder=EXAMPLES), 0)
    except FlowError as error:
        return {diagnostic.code for diagnostic in error.diagnostics}
    return set()


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_has_a_head(name: str) -> None:
    head = preset_head(name)
    assert head.what.endswith(".")
    assert re.search(r"\b(19|20)\d\d\b", head.paper)
    assert re.search(r"^name: " + name, preset_text(name), flags=re.MULTILINE)
    assert (FOLDER / f"{name}.yaml").is_file()


def test_mappings_merge_deep_and_lists_replace() -> None:
    text = minimal("grpo") + (
        "step: {prompts: 16}\nplacement: {pools: {all: {gpus: 8, roles: [actor_train, actor_infer, reference]}}}\n"
    )
    text = text.replace("roles: {", "roles: {actor_train: {update: {kl: null}, optimizer: {lr: 2.0e-6}}, ")
    stage = loads(text).stages[0]
    assert (stage.step.prompts, stage.step.samples_per_prompt) == (16, 8)
    trainer = stage.roles["actor_train"]
    assert isinstance(trainer, TrainerRole)
    assert trainer.update.kl is None
    assert (trainer.update.loss, trainer.optimizer.lr, trainer.optimizer.name) == ("ppo", 2e-6, "adamw")


def test_edges_add() -> None:
    text = minimal("ppo") + (
        "edges:\n"
        "  - {edge: advantage.estimate -> actor_train.update, start_step: 20}\n"
        "  - data.val -> actor_infer.generate@val\n"
    )
    spec = loads(text.replace("data: {", "data: {val: {source: val.jsonl}, "))
    assert edges_of(spec)[3:] == [
        "advantage.estimate -> actor_train.update",
        "advantage.estimate -> critic.update",
        "actor_train => actor_infer",
        "data.val -> actor_infer.generate@val",
    ]
    assert [edge.start_step for edge in spec.stages[0].edges][3:5] == [20, None]


def test_origins() -> None:
    spec = loads(minimal("grpo"), file="a.yaml", sets=["step.prompts=4"])
    kinds = {path: origin.kind for path, origin in spec.origins.items()}
    assert kinds["roles", "actor_train", "update", "loss"] is OriginKind.PRESET
    assert kinds["roles", "reward", "function"] is OriginKind.FILE
    assert kinds["step", "prompts"] is OriginKind.FLAG
    assert ("step", "epochs") not in kinds
    span = spec.span("roles", "actor_train", "update", "loss")
    assert span is not None
    assert span.file == "preset:grpo"
    assert spec.text["preset:grpo"].split("\n")[span.line - 1][span.column - 1 : span.end_column - 1] == "ppo"


def test_use_is_gone_once_resolved() -> None:
    assert loads(minimal("grpo")).document.use is None


def test_flag_may_choose_the_preset() -> None:
    text = minimal("grpo").replace("models: {", "models: {value: {source: m, head: scalar}, ")
    spec = loads(text, sets=["use=ppo"])
    assert "critic" in spec.document.roles


def test_labels_add_to_a_preset() -> None:
    text = minimal("grpo").replace("roles: {", "roles: {actor_infer: {generate@val: {temperature: 0.0}}, ")
    role = loads(text).stages[0].roles["actor_infer"]
    assert isinstance(role, GeneratorRole)
    assert role.generate.temperature == 1.0
    assert role.labelled["val"].temperature == 0.0


def test_the_jobs_that_use_presets() -> None:
    spec = load(ROOT / "examples" / "flows" / "02-ppo-reward-model-split.yaml")
    reward = spec.document.roles["reward"]
    assert isinstance(reward, RewardRole)
    assert (reward.flavour, reward.model) == ("model", "rm")
    critic = spec.document.roles["critic"]
    assert isinstance(critic, TrainerRole)
    assert (critic.model, critic.update.epochs, critic.optimizer.lr) == ("value", 2, 1e-5)
