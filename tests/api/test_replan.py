"""Re-planning: which role goes which way, sums that add up, when it pays, and numbers that open."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from flowrl import api
from flowrl.diag.diagnostic import FlowError
from flowrl.explain.moves import (
    BREAK_EVEN,
    MOVED,
    MOVING,
    SAVED,
    STEP_AFTER,
    STEP_BEFORE,
    STORED,
    STORED_BREAK_EVEN,
    Replan,
    RoleMove,
)
from flowrl.machine.models import CARDS
from flowrl.placement.cost.ledger import evaluate
from flowrl.report.opened import render_opened
from tests.conftest import Told

PPO = """
flowrl: 1
name: ppo
cluster: 8xH100-80G
models:
  policy: {source: Qwen/Qwen2.5-1.5B}
  value: {source: Qwen/Qwen2.5-0.5B, head: scalar}
data: {train: {source: "rows.py:rows", prompt: question, max_prompt_tokens: 256}}
roles:
  actor_train: {model: policy, backend: fsdp, update: {loss: ppo}}
  actor_infer: {model: policy, backend: vllm, generate: {max_response_tokens: 512}}
  critic: {model: value, backend: fsdp, update: {loss: value}}
  reference: {model: policy, backend: fsdp}
  reward: {function: "flowrl:overlong", args: {max_tokens: 512, buffer_tokens: 128}}
  advantage: {estimator: gae, kl: {coef: 0.001}}
edges:
  - data.train -> actor_infer.generate
  - actor_infer.generate -> reward.score, reference.log_probs, critic.values, actor_train.log_probs
  - reward.score, reference.log_probs, critic.values, actor_train.log_probs -> advantage.estimate
  - advantage.estimate -> actor_train.update, critic.update
  - actor_train => actor_infer
step: {prompts: 256, samples_per_prompt: 8}
run: {steps: 40}
placement: colocated
"""
PARAMETERS = CARDS["Qwen/Qwen2.5-1.5B"].parameters


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "rows.py").write_text("def rows():\n    return [{'question': 'a'}]\n", encoding="utf-8")
    (tmp_path / "ppo.yaml").write_text(PPO, encoding="utf-8")
    return tmp_path / "ppo.yaml"


def kept(file: Path, cluster: str, *sets: str) -> Path:
    """A plan file of the flow on a cluster."""
    plan = file.with_name(f"{cluster.replace('/', '-')}.json")
    plan.write_bytes(api.dumps(api.plan(file, sets, cluster)))
    return plan


def move(file: Path, before: str, after: str, *sets: str) -> Replan:
    return api.replan(kept(file, before, *sets), api.plan(file, sets, after), file, sets)


def ways(found: Replan) -> dict[str, str]:
    return {role.role: role.way for role in found.stages[0].roles}


def lines(role: RoleMove) -> dict[str, float]:
    return {line.what: line.value for line in role.lines}


def test_a_larger_cluster(file: Path) -> None:
    """8 to 16 GPUs of which 8 are the same: shards halve, so the first rank keeps half of what it has."""
    found = move(file, "8xH100-80G", "16xH100-80G")
    (stage,) = found.stages
    assert found.shared_devices == 8
    assert found.moved_digests == ("cluster",)
    assert found.diagnostics == ()
    assert ways(found) == {
        "actor_infer": "next_sync",
        "actor_train": "device_to_device",
        "critic": "device_to_device",
        "reference": "device_to_device",
    }
    actor = next(role for role in stage.roles if role.role == "actor_train")
    master = sum(value for what, value in lines(actor).items() if what.startswith("master weights"))
    states = sum(value for what, value in lines(actor).items() if what.startswith("optimizer states"))
    assert master == 4 * PARAMETERS
    assert states == 8 * PARAMETERS
    assert lines(actor)["master weights over the network"] == pytest.approx(4 * PARAMETERS / 2, rel=0.01)
    assert stage.value(STORED) == pytest.approx(stored_seconds(file), rel=1e-3)
    assert (stage.value(STORED_BREAK_EVEN) or 0) >= (stage.break_even or 0)
    assert stage.value(STEP_BEFORE) == api.plan(file, (), "8xH100-80G").stages[0].estimate.step_seconds
    assert stage.value(STEP_AFTER) == api.plan(file, (), "16xH100-80G").stages[0].estimate.step_seconds
    check_sums(found)


def stored_seconds(file: Path) -> float:
    """12 bytes of each trained number written by one node and read by two, whose disks reach 0.8 of 2 GB/s each; the
    reference's 2 bytes are read alone. Nothing waits for the network."""
    group = api.plan(file, (), "8xH100-80G").cluster.groups[0]
    disk = group.disk_bytes_per_second * 0.8
    trained = PARAMETERS + CARDS["Qwen/Qwen2.5-0.5B"].parameters - CARDS["Qwen/Qwen2.5-0.5B"].head_parameters
    return (12 * trained * 1.5 + 2 * PARAMETERS / 2) / disk


def check_sums(found: Replan) -> None:
    """Every line is its formula; totals are sums of what the roles have."""
    for stage in found.stages:
        own = [line for role in stage.roles for line in role.lines]
        for line in (*own, *stage.lines, *(line for role in stage.roles for line in role.instead)):
            assert evaluate(line.formula, line.inputs) == pytest.approx(line.value, abs=1)
        moved = [line.value for line in own if line.unit == "bytes" and line.what.split()[-1] in _MOVES]
        assert stage.value(MOVED) == sum(moved)
        assert stage.value(MOVING) == pytest.approx(sum(line.value for line in own if line.unit == "seconds"))
        stored = [line.value for role in stage.roles for line in role.instead or role.lines if line.unit == "seconds"]
        if any(role.instead for role in stage.roles):
            assert stage.value(STORED) == pytest.approx(sum(stored))
        assert stage.value(SAVED) == (stage.value(STEP_BEFORE) or 0) - (stage.value(STEP_AFTER) or 0)


_MOVES = ("links", "network", "written", "read")


def test_break_even_is_where_the_saved_seconds_are_more(file: Path) -> None:
    found = move(file, "8xH100-80G", "2x8xH200", "run.steps=400")
    (stage,) = found.stages
    even, saved, moving = stage.break_even, stage.value(SAVED) or 0, stage.value(MOVING) or 0
    assert stage.verdict == "pays_off"
    assert even is not None
    assert saved > 0
    assert even * saved >= moving
    assert (even - 1) * saved < moving
    assert stage.value(BREAK_EVEN) == even
    assert f"worth it if more than {even} of the run's 400 steps are left" in api.render_replan(found)
    check_sums(found)
    short = move(file, "8xH100-80G", "2x8xH200", "run.steps=5")
    assert f"moving pays only after {even} steps, and run.steps is 5" in api.render_replan(short)


def test_other_devices_take_a_checkpoint(file: Path) -> None:
    """None of the GPUs is in both: all of it is written and read, whatever the layouts."""
    found = move(file, "8xH100-80G", "8xH200")
    assert found.shared_devices == 0
    assert ways(found) == {
        "actor_infer": "next_sync",
        "actor_train": "checkpoint",
        "critic": "checkpoint",
        "reference": "files",
    }
    by_role = {role.role: lines(role) for role in found.stages[0].roles}
    assert by_role["actor_train"]["master weights written"] == 4 * PARAMETERS
    assert by_role["actor_train"]["optimizer states read"] == 8 * PARAMETERS
    assert by_role["actor_train"]["moved of actor_train"] == 24 * PARAMETERS
    assert by_role["reference"]["weights read"] == 2 * PARAMETERS
    assert by_role["actor_infer"] == {}
    check_sums(found)


def test_the_same_cluster_moves_nothing(file: Path) -> None:
    found = move(file, "8xH100-80G", "8xH100-80G")
    (stage,) = found.stages
    assert stage.verdict == "nothing_moves"
    assert stage.value(MOVED) == stage.value(MOVING) == 0
    assert {role.way for role in stage.roles} == {"stays", "next_sync"}
    assert found.moved_digests == ()
    assert "nothing has to move, and a step takes as long" in api.render_replan(found)


def test_a_smaller_cluster_never_pays_in_time(file: Path) -> None:
    found = move(file, "16xH100-80G", "8xH100-80G")
    (stage,) = found.stages
    assert stage.verdict == "never_pays_off"
    assert stage.break_even is None
    assert stage.value("GPU-seconds per step after") is not None
    text = api.render_replan(found)
    assert "moving never pays in time: each step takes" in text
    assert "through a checkpoint instead" in text
    check_sums(found)


def test_another_flow_is_told_and_other_models_are_read(file: Path, told: Told) -> None:
    """FR0745; the critic's weights are none of the kept run."""
    plan = kept(file, "8xH100-80G")
    sets = ("models.value.source=Qwen/Qwen2.5-1.5B",)
    found = api.replan(plan, api.plan(file, sets, "16xH100-80G"), file, sets)
    assert found.moved_digests == ("flow", "cluster")
    assert ways(found) == {
        "actor_infer": "next_sync",
        "actor_train": "device_to_device",
        "critic": "files",
        "reference": "device_to_device",
    }
    told(found.diagnostics, "FR0745")
    muted = (*sets, "allow=[FR0745]")
    assert api.replan(plan, api.plan(file, muted, "16xH100-80G"), file, muted).diagnostics == ()
    check_sums(found)


def test_roles_come_and_go(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    plan = kept(file, "8xH100-80G")
    without = text.replace("  reference: {model: policy, backend: fsdp}\n", "").replace(" reference.log_probs,", "")
    file.write_text(without.replace(", kl: {coef: 0.001}", ""), encoding="utf-8")
    found = api.replan(plan, api.plan(file, (), "8xH100-80G"), file)
    assert ways(found)["reference"] == "gone"
    bare = kept(file, "16xH100-80G")
    file.write_text(text, encoding="utf-8")
    back = api.replan(bare, api.plan(file, (), "16xH100-80G"), file)
    assert ways(back)["reference"] == "files"


def test_stages_are_moved_each_for_itself(file: Path) -> None:
    """A run is in one of them; a stage that the kept plan has not moves nothing."""
    after = api.plan(file, (), "16xH100-80G")
    before = api.plan(file, (), "8xH100-80G")
    plan = file.with_name("other.json")
    plan.write_bytes(api.dumps(replace(before, stages=(replace(before.stages[0], name="else"),))))
    found = api.replan(plan, after, file)
    assert found.stages == ()
    assert "no stage of the flow is in the kept plan" in api.render_replan(found)


def test_numbers_open(file: Path) -> None:
    plan = kept(file, "8xH100-80G")
    opened = api.open_move("break-even", file, plan, cluster="16xH100-80G")
    text = render_opened(opened)
    assert "ceil(m/(a - b))" in text
    assert "actor_train.moving" in text
    links = api.open_move("actor_train.optimizer states over the network", file, plan, cluster="16xH100-80G")
    assert links.value == links.again
    whole = api.open_move(None, file, plan, cluster="16xH100-80G")
    assert "break-even" in {part.key for part in whole.parts}
    with pytest.raises(FlowError) as error:
        api.open_move("brake-even", file, plan, cluster="16xH100-80G")
    assert [each.code for each in error.value.diagnostics] == ["FR0720"]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_text_keeps_its_width_and_its_numbers(file: Path, width: int) -> None:
    found = move(file, "8xH100-80G", "16xH100-80G")
    assert max(map(len, api.render_replan(found, width).splitlines())) <= width
    assert api.render_replan(found, width, ascii=True).isascii()
    plain = json.loads(api.replan_json(found))
    assert plain["stages"][0]["break_even"] == found.stages[0].break_even
