"""The commands of the language on real files: init, check --fix, expand --origins, show, explain."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flowrl.cli.main import main
from flowrl.graph.graph import Graph
from flowrl.graph.text import parse_graph
from flowrl.machine.profile import read_profile
from flowrl.runtime.measure import session
from flowrl.runtime.measure.figures import Figure

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PPO = str(EXAMPLES / "ppo.yaml")
BAD = """flowrl: 1
name: sft
use: sft
cluster: 1xH100-80G
models: {policy: {source: Qwen/Qwen2.5-0.5B-Instruct}}
data: {train: {source: a.jsonl, promt: question, response: answer, max_prompt_tokens: 512}}
step: {prompts: 8}
"""


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(list(arguments))
    assert isinstance(left.value.code, int)
    return left.value.code


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_init_writes_a_flow_that_passes_check(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("init", "--preset", "ppo", "job") == 0
    assert capsys.readouterr().out.startswith("wrote job/ppo.yaml, ")
    assert call("check", "job/ppo.yaml") == 0
    assert call("init", "--preset", "ppo", "job") == 1
    assert call("init", "--preset", "pppo", "other") == 1
    told = capsys.readouterr().err
    assert "error[FR0025]" in told
    assert "error[FR0114]" in told


def test_fix_shows_a_diff_and_what_is_left(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("f.yaml").write_text(BAD)
    assert call("check", "f.yaml") == 1
    assert capsys.readouterr().out == "f.yaml: 1 error; `check --fix` mends 1\n"
    assert call("check", "f.yaml", "--fix") == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("--- a/f.yaml\n+++ b/f.yaml\n")
    assert printed.out.endswith("f.yaml: 1 place mended; no errors\n")
    assert Path("f.yaml").read_text() == BAD.replace("promt", "prompt")
    assert call("check", "f.yaml", "--fix") == 0
    assert capsys.readouterr().out == "f.yaml: nothing to mend; no errors\n"


def test_fix_in_json_keeps_stdout_to_the_list(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("f.yaml").write_text(BAD)
    assert call("check", "f.yaml", "--fix", "--format", "json") == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == []
    assert printed.err.startswith("--- a/f.yaml")


def test_fault_that_stops_loading_is_sarif_on_stdout(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("f.yaml").write_text(BAD)
    for command in ("check", "plan"):
        assert call(command, "f.yaml", "--format", "sarif") == 1
        printed = capsys.readouterr()
        (run,) = json.loads(printed.out)["runs"]
        assert [result["ruleId"] for result in run["results"]] == ["FR0103"]
        assert not printed.err


def test_frames_show_lines_of_presets_and_included_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("parts").mkdir()
    Path("parts/roles.yaml").write_text("roles:\n  actor_train: {optimizer: {lrr: 1.0e-6}}\n")
    Path("f.yaml").write_text(
        BAD.replace("promt", "prompt").replace("use: sft", "use: sft\ninclude: [parts/roles.yaml]")
    )
    assert call("check", "f.yaml") == 1
    told = capsys.readouterr().err
    assert "┌─ parts/roles.yaml:2:29" in told
    assert "2 │   actor_train: {optimizer: {lrr: 1.0e-6}}" in told
    Path("f.yaml").write_text(BAD.replace("promt", "prompt").replace("policy:", "student:"))
    assert call("check", "f.yaml") == 1
    told = capsys.readouterr().err
    assert "┌─ preset:sft:" in told
    assert "│     model: policy" in told


def test_origins_say_where_values_came_from(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("expand", PPO, "--origins", "--set", "run.steps=7") == 0
    lines = {line.partition("#")[0].strip(): line.partition("# ")[2] for line in capsys.readouterr().out.splitlines()}
    assert lines["steps: 7"] == "--set"
    assert lines["lam: 0.95"].startswith(f"{PPO}:")
    assert "default" in lines.values()


def test_show_draws_or_prints_what_parses_back(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("show", PPO, "--width", "80") == 0
    drawn = capsys.readouterr().out
    assert drawn.startswith(" ppo · 32 prompts × 4 samples a step · 2 updates\n")
    assert max(map(len, drawn.splitlines())) <= 80
    assert call("show", PPO, "--after", "lowered", "--set", "step.prompts=64") == 0
    graph = parse_graph(capsys.readouterr().out)
    assert (graph.step.prompts, graph.passes, graph.edges) == (64, (), ())
    assert call("show", PPO, "--format", "json") == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert set(Graph.__struct_fields__) == set(record)
    assert record["passes"][0] == "refuse_cycles"


@pytest.mark.parametrize(
    ("name", "told"),
    [("infer_typs", "a pass with a near name exists: infer_types"), ("x", "the passes are lowered, refuse_cycles, ")],
)
def test_unknown_pass(name: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("show", PPO, "--after", name) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("code", ["FR0206", "fr0206", "206", "0206"])
def test_code_may_be_short(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("explain", code) == 0
    assert capsys.readouterr().out.startswith("# FR0206: ")


def test_explain_tells_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("explain", "checkpoint_every_steps") == 0
    assert "\n  unit     steps\n" in capsys.readouterr().out
    assert call("explain", "step.refill", "--format", "json") == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert record["keys"] == ["max_rounds", "oversample"]
    assert call("explain", "step.refil") == 2
    assert "a key with a near name exists: step.refill" in capsys.readouterr().err


def test_explain_opens_a_number_of_a_plan_file_and_of_a_flow(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("plan", PPO, "-o", "plan.json") == 0
    capsys.readouterr()
    assert call("explain", "plan.json", "actor_infer.generate") == 0
    from_plan = capsys.readouterr().out
    assert from_plan.startswith("actor_infer.generate  seconds  ")
    assert call("explain", PPO, "actor_infer.generate") == 0
    assert capsys.readouterr().out == from_plan
    assert call("explain", "plan.json", "step", "--format", "json") == 0
    step = json.loads(capsys.readouterr().out)
    assert (
        step["value"]
        == step["again"]
        == json.loads(Path("plan.json").read_text())["stages"][0]["estimate"]["step_seconds"]
    )
    assert call("explain", "plan.json") == 0
    assert "\n    step " in capsys.readouterr().out


def test_explain_tells_codes_and_keys_of_the_language_as_ever(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("plan", PPO, "-o", "plan.json") == 0
    capsys.readouterr()
    assert call("explain", "plan.json", "FR0721") == 0
    assert capsys.readouterr().out.startswith("# FR0721: ")
    assert call("explain", "step.prompts") == 0
    assert capsys.readouterr().out.startswith("step.prompts\n")
    assert call("explain", "plan.json", "stp") == 1
    assert "error[FR0720]" in capsys.readouterr().err
    assert call("explain", "plan.json", "step", "--set", "run.steps=3") == 1
    assert "error[FR0708]" in capsys.readouterr().err
    assert call("explain", "none.yaml", "step") == 1
    assert "error[FR0001]" in capsys.readouterr().err
    assert call("explain", "plan.json", "step", "more") == 2


def test_profile_needs_a_folder_before_it_measures(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("profile", "--quick", "-o", "none/profile.toml") == 1
    assert "error[FR0026]" in capsys.readouterr().err


def test_profile_writes_what_was_measured_before_ctrl_c(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "copies", _stopped)
    monkeypatch.setattr(
        session, "products", lambda machine, quick: [Figure(path="device.cpu.train", value=0.5, text="x")]
    )
    assert call("profile", "--quick", "-o", "mine.toml") == 130
    printed = capsys.readouterr()
    assert "not measured, as FlowRL assumes: copies of memory, writes to disk" in printed.out
    assert max(map(len, printed.out.splitlines())) <= 100
    assert "measuring  1/8  matrix products  left " in printed.err
    assert read_profile(Path("mine.toml").read_text()).device["cpu"]["train"] == 0.5
    assert call("plan", PPO, "--profile", "mine.toml") == 0


def _stopped(machine: object, quick: bool) -> list[Figure]:
    raise KeyboardInterrupt
