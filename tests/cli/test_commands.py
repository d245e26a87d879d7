"""Commands on real flows, through the real api. Nothing here trains."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from flowrl import api
from flowrl.cli.main import main

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PPO = str(EXAMPLES / "ppo.yaml")
PPO_7B = str(EXAMPLES / "ppo_7b.yaml")
GPUS = "16xH100-80G"


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(list(arguments))
    assert isinstance(left.value.code, int)
    return left.value.code


def test_plan_json_is_the_plan_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    assert call("plan", PPO, "--cluster", GPUS, "--format", "json", "-o", str(file)) == 0
    printed = capsys.readouterr().out
    assert printed.rstrip("\n") == file.read_text(encoding="utf-8").rstrip("\n")
    wanted = {"flowrl_plan", "name", "digests", "verdict", "cluster", "sources", "run", "stages", "diagnostics"}
    plan = json.loads(printed)
    assert wanted <= set(plan)
    assert plan["verdict"] == "fits"
    (stage,) = plan["stages"]
    assert {"name", "graph", "pools", "edges", "programs", "memory", "estimate", "decisions"} <= set(stage)
    assert api.loads(file.read_bytes(), str(file)).name == "ppo"


def test_plan_text_stays_within_the_width(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("plan", PPO_7B, "--width", "90") == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 90
    assert lines[0].startswith(" ppo-7b · ")


def test_commands_that_may_follow_have_the_flags_given(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--cluster", GPUS, "--set", "run.steps=3", "--set", "step.prompts= 64")
    assert call("plan", PPO, "--width", "300", *flags) == 0
    last = capsys.readouterr().out.partition(" next ")[2]
    assert f"flowrl run {PPO} --cluster {GPUS} --set run.steps=3 --set 'step.prompts= 64' · " in last


def test_set_reaches_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("plan", PPO, "--set", "step.prompts=64", "--set", "run.steps=3", "--format", "json") == 0
    (stage,) = json.loads(capsys.readouterr().out)["stages"]
    assert (stage["graph"]["step"]["prompts"], stage["run"]["steps"]) == (64, 3)


def test_what_does_not_fit_exits_with_four(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("plan", PPO_7B, "--cluster", "1xH100-80G", "--format", "json") == 4
    assert json.loads(capsys.readouterr().out)["verdict"] == "infeasible"
    assert call("check", PPO_7B, "--cluster", "1xH100-80G") == 4
    assert "error[FR0501]" in capsys.readouterr().err
    assert call("run", PPO_7B, "--cluster", "1xH100-80G") == 4


def test_typo_is_a_frame_and_exit_one(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    flow = tmp_path / "ppo.yaml"
    text = Path(PPO).read_text(encoding="utf-8").replace("temperature: 1.0", "temprature: 1.0")
    flow.write_text(text.replace("arithmetic.py", str(EXAMPLES / "arithmetic.py")), encoding="utf-8")
    assert call("plan", str(flow)) == 1
    printed = capsys.readouterr()
    assert not printed.out
    assert printed.err.startswith("error[FR0103]: unknown key")
    assert "temperature" in printed.err.partition("help:")[2]
    assert "Traceback" not in printed.err


@pytest.mark.parametrize("command", ["check", "plan", "run", "expand"])
def test_missing_file_is_told(command: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert call(command, str(tmp_path / "none.yaml")) == 1
    assert "error[FR0001]: file not found" in capsys.readouterr().err


def test_missing_cluster_file_is_not_told_as_a_flow(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert call("plan", PPO, "--cluster", str(tmp_path / "c.yaml")) == 1
    assert "a YAML file with a cluster" in capsys.readouterr().err


def test_folder_that_is_no_run_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert call("resume", str(tmp_path)) in (1, 5)
    assert "error[FR0907]" in capsys.readouterr().err
    assert call("export", f"{tmp_path}@3", "-o", str(tmp_path / "out")) in (1, 5)
    assert "error[FR0907]" in capsys.readouterr().err


def test_plan_file_that_cannot_be_written_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert call("plan", PPO, "-o", str(tmp_path / "none" / "plan.json")) == 1
    assert capsys.readouterr().err.startswith("error[FR0026]: file cannot be written")


def test_expanded_flow_has_the_same_digest(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert call("expand", PPO) == 0
    (tmp_path / "ppo.yaml").write_text(capsys.readouterr().out, encoding="utf-8")
    shutil.copy(EXAMPLES / "arithmetic.py", tmp_path)
    assert api.plan(tmp_path / "ppo.yaml").digests == api.plan(PPO).digests


def test_schema_is_a_json_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("schema") == 0
    schema = json.loads(capsys.readouterr().out)
    assert "flowrl" in schema["properties"]
