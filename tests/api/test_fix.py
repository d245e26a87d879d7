"""`check --fix`: certain edits only, in the flow's folder only, until none is left; all other bytes stay."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flowrl import api
from flowrl.diag.diagnostic import FlowError

FLOW = """\
# a remark
flowrl: 1
name: grpo
use: grpo   # another
cluster: 8xH100-80G
models: {policy: {source: Qwen/Qwen2.5-0.5B-Instruct}}
data: {train: {source: gsm8k.jsonl, promt: question, kep: [answer], max_prompt_tokens: 512}}
roles:
  actor_infer: {generate: {temprature: "0.9"}}
  reward: {function: "flowrl:exact"}
step: {prompts: 128, samples_per_prompt: 8}
"""
MENDED = FLOW.replace("promt:", "prompt:").replace("kep:", "keep:").replace('temprature: "0.9"', "temperature: 0.9")


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rewards.py").write_text("def reward(response, answer):\n    return []\n")


def write(text: str, file: str = "flow.yaml") -> Path:
    path = Path(file)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text.replace("flowrl:exact", "rewards.py:reward").encode())
    return path


def now(file: str = "flow.yaml") -> str:
    return Path(file).read_bytes().decode().replace("rewards.py:reward", "flowrl:exact")


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_all_rounds_are_made_and_all_else_stays(end: str) -> None:
    """The number in quotes comes into sight only when its key is right."""
    write(FLOW.replace("\n", end))
    changed, checked = api.fix("flow.yaml")
    assert now() == MENDED.replace("\n", end)
    assert [(fixed.file, fixed.edits) for fixed in changed] == [("flow.yaml", 4)]
    assert checked.diagnostics == ()
    assert "-data: {train: {source: gsm8k.jsonl, promt: question" in changed[0].diff()


def test_second_call_changes_nothing() -> None:
    path = write(MENDED)
    before = path.stat()
    changed, _ = api.fix("flow.yaml")
    assert changed == []
    assert path.stat().st_mtime_ns == before.st_mtime_ns


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("samples_per_prompt: 8}", "samples_per_prompt: 8, sample_per_prompt: 8}"),  # the near key is there already
        ("use: grpo ", "use: grppo "),  # a value
        ("temperature: 0.9", "tempo: 0.9"),  # shares only a beginning
    ],
)
def test_what_is_not_certain_is_left(right: str, wrong: str) -> None:
    write(MENDED.replace(right, wrong))
    changed, checked = api.fix("flow.yaml")
    assert changed == []
    assert checked.diagnostics
    assert now() == MENDED.replace(right, wrong)


def test_value_behind_an_alias_is_left() -> None:
    text = MENDED.replace("name: grpo\n", 'name: grpo\nvars: {t: &t "0.9"}\n').replace(
        "temperature: 0.9", "temperature: *t"
    )
    write(text)
    assert api.fix("flow.yaml")[0] == []


def test_included_file_of_the_folder_is_mended_and_no_other(tmp_path: Path) -> None:
    part = "roles:\n  actor_infer: {generate: {temprature: 0.5}}\n"
    Path("inside").mkdir()
    write(part, "inside/part.yaml")
    write(MENDED.replace("use: grpo", "include: [part.yaml]\nuse: grpo"), "inside/flow.yaml")
    write("def reward(response, answer):\n    return []\n", "inside/rewards.py")
    assert [fixed.file for fixed in api.fix("inside/flow.yaml")[0]] == ["inside/part.yaml"]
    assert now("inside/part.yaml") == part.replace("temprature", "temperature")
    write(part, "part.yaml")
    write(MENDED.replace("use: grpo", "include: [../part.yaml]\nuse: grpo"), "inside/flow.yaml")
    changed, checked = api.fix("inside/flow.yaml")
    assert (changed, now("part.yaml")) == ([], part)
    assert [d.code for d in checked.diagnostics] == ["FR0103"]


def test_flag_is_never_mended() -> None:
    write(MENDED)
    changed, checked = api.fix("flow.yaml", sets=["step.promts=4"])
    assert changed == []
    assert [d.code for d in checked.diagnostics] == ["FR0103"]
    assert now() == MENDED


def test_mode_and_link_stay() -> None:
    target = write(FLOW, "real.yaml")
    target.chmod(0o640)
    Path("flow.yaml").symlink_to("real.yaml")
    assert api.fix("flow.yaml")[0]
    assert Path("flow.yaml").is_symlink()
    assert target.stat().st_mode & 0o777 == 0o640
    assert now("real.yaml") == MENDED
    assert sorted(os.listdir()) == ["flow.yaml", "real.yaml", "rewards.py"]


def test_file_that_cannot_be_written_is_told_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    write(FLOW)
    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(FlowError, match="FR0026"):
        api.fix("flow.yaml")
    assert now() == FLOW
    assert sorted(os.listdir()) == ["flow.yaml", "rewards.py"]
