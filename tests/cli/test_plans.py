"""`diff`, `plan --against`, `why-not` and the refusal of stale plans, through the command line."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.cli.test_commands import EXAMPLES, call

Printed = pytest.CaptureFixture[str]


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("ppo.yaml", "ppo_7b.yaml", "arithmetic.py", "word_problems.py"):
        shutil.copy(EXAMPLES / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_plan_against_itself_differs_in_nothing(job: Path, capsys: Printed) -> None:
    assert call("plan", "ppo.yaml", "-o", "plan.json") == 0
    capsys.readouterr()
    assert call("plan", "ppo.yaml", "--against", "plan.json", "--exit-code") == 0
    assert "ppo.yaml runs what plan.json runs; nothing to rebuild" in capsys.readouterr().out
    assert call("diff", "plan.json", "plan.json", "--exit-code", "--format", "json") == 0
    assert json.loads(capsys.readouterr().out)["differs"] is False


def test_plans_that_differ_exit_with_three_where_asked(job: Path, capsys: Printed) -> None:
    assert call("plan", "ppo.yaml", "-o", "plan.json") == 0
    flags = ("--set", "step.prompts=64")
    capsys.readouterr()
    assert call("diff", "plan.json", "ppo.yaml", *flags) == 0
    text = capsys.readouterr().out
    assert "~ step.prompts: 32 → 64 (batch, --set:1:14)" in text
    assert call("diff", "plan.json", "ppo.yaml", *flags, "--exit-code") == 3
    assert capsys.readouterr().out == text
    assert call("plan", "ppo.yaml", *flags, "--against", "plan.json", "--exit-code", "-o", "other.json") == 3
    assert capsys.readouterr().out == text
    assert call("diff", "plan.json", "other.json", "--exit-code", "--format", "json") == 3
    found = json.loads(capsys.readouterr().out)
    assert {"flowrl_diff", "before", "after", "moved", "changes", "totals", "differs"} <= set(found)
    (prompts,) = (each for each in found["changes"] if each["what"] == "step.prompts")
    assert (prompts["effect"], prompts["section"], prompts["before"], prompts["after"]) == ("live", "step", "32", "64")
    (step,) = (each for each in found["totals"] if each["what"] == "step")
    assert step["before"] < step["after"]


def test_a_plan_that_does_not_fit_exits_with_four(job: Path, capsys: Printed) -> None:
    assert call("plan", "ppo_7b.yaml", "-o", "plan.json") == 0
    assert call("plan", "ppo_7b.yaml", "--cluster", "1xH100-80G", "--against", "plan.json", "--exit-code") == 4
    assert "now DOES NOT FIT" in capsys.readouterr().out


def test_exit_code_needs_something_to_compare_with(job: Path, capsys: Printed) -> None:
    assert call("plan", "ppo.yaml", "--exit-code") == 2
    assert "--exit-code goes with --against" in capsys.readouterr().err


def test_flags_are_for_flows(job: Path, capsys: Printed) -> None:
    assert call("plan", "ppo.yaml", "-o", "plan.json") == 0
    assert call("diff", "plan.json", "plan.json", "--set", "run.steps=1") == 1
    assert "FR0708" in capsys.readouterr().err
    assert call("diff", "plan.json", "nowhere.json") == 1
    assert "FR0706" in capsys.readouterr().err


def test_a_stale_plan_is_refused_with_what_differs(job: Path, capsys: Printed) -> None:
    assert call("plan", "ppo.yaml", "-o", "plan.json") == 0
    flow = job / "ppo.yaml"
    flow.write_text(flow.read_text().replace("prompts: 32", "prompts: 64"))
    capsys.readouterr()
    assert call("run", "plan.json") == 1
    told = capsys.readouterr()
    assert not told.out
    assert told.err.startswith("error[FR0730]: the plan is stale")
    assert "step.prompts: 32 → 64" in told.err
    assert not (job / "runs").exists()


def test_why_not_in_text_and_json(job: Path, capsys: Printed) -> None:
    question = "critic and actor_infer apart"
    assert call("why-not", "ppo_7b.yaml", question) == 0
    text = capsys.readouterr().out
    assert text.startswith(f" {question}: ")
    assert call("why-not", "ppo_7b.yaml", question, "--format", "json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["flowrl_why_not"] == 1
    assert found["verdict"] in ("planned", "slower", "dearer", "equal", "faster")
    assert all(pool.partition(":")[0] in text for pool in found["pools"])


def test_a_question_is_shown_where_it_is_wrong(job: Path, capsys: Printed) -> None:
    assert call("why-not", "ppo_7b.yaml", "critic on pool rollouts") == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "error[FR0732]: the question names nothing of this plan"
    assert lines[2] == "1 │ critic on pool rollouts"
    assert lines[3].startswith("  │                ^^^^^^^^ `rollouts` is no pool of this plan")
    assert "a pool with a near name exists: `rollout`" in lines[4]


def test_helps_are_told_after_the_plan_or_in_its_place(job: Path, capsys: Printed) -> None:
    assert call("plan", "ppo_7b.yaml", "--helps") == 0
    text = capsys.readouterr().out
    assert re.search(r" HELPS   bound by \w+\.\w+ → ", text)
    assert "step ≈" in text
    assert call("plan", "ppo_7b.yaml", "--helps", "--format", "json") == 0
    (stage,) = json.loads(capsys.readouterr().out)
    assert stage["text"].split(";")[0] in " ".join(text.split())
    assert call("plan", "ppo_7b.yaml", "--helps", "--against", "plan.json") == 2
    assert "--helps goes with neither --against nor --from" in capsys.readouterr().err
