"""The command `rehearse`: its words for what is changed and what has run, and one rehearsal from end to end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flowrl.cli.main import main
from flowrl.cli.rehearse import change_lines, ran_lines, record
from flowrl.runtime.rehearsal import Ran, Rehearsal
from flowrl.runtime.rehearse import Change

MADE = Rehearsal(
    folder=Path("runs/big-rehearsal"),
    launcher="inline",
    changes=(Change("shrunk", "step.prompts", "128", "8"), Change("replaced", "gate", "reward", "none")),
    ran=(
        Ran("big", "run actor_infer.generate", "rollout", (1, 2), 0.25),
        Ran("big", "save actor_train", "train", (2,), 0.0314),
        Ran("big", "run reward.score@val", "host", (), 0.0),
    ),
)


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(list(arguments))
    assert isinstance(left.value.code, int)
    return left.value.code


def test_what_is_changed_is_told_by_kind() -> None:
    assert list(change_lines(MADE.changes, 80)) == [
        "not what the plan says",
        "  gate: reward → none",
        "smaller than the plan says",
        "  step.prompts: 128 → 8",
        "",
    ]


def test_what_has_run_is_told_by_pool() -> None:
    assert list(ran_lines(MADE, 80)) == [
        "pool rollout",
        "  run actor_infer.generate  steps 1, 2 · 0.250 s",
        "pool train",
        "  save actor_train  step 2 · 0.031 s",
        "pool host",
        "  run reward.score@val  not in these steps",
        "",
        "rehearsed: 2 of 3 instructions have run (inline) · runs/big-rehearsal",
    ]


def test_the_record_holds_all_of_it() -> None:
    told = record(MADE)
    assert (told["run"], told["launcher"]) == ("runs/big-rehearsal", "inline")
    assert told["changes"][0] == {"kind": "shrunk", "of": "step.prompts", "was": "128", "now": "8"}
    assert [(each["instruction"], each["steps"]) for each in told["instructions"]] == [
        ("run actor_infer.generate", [1, 2]),
        ("save actor_train", [2]),
        ("run reward.score@val", []),
    ]


def test_vllm_needs_processes_of_its_own(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert call("rehearse", str(tmp_path / "flow.yaml"), "--engine", "vllm", "--launcher", "inline") == 2
    assert "--launcher ray" in capsys.readouterr().err


FLOW = """\
flowrl: 1
name: sft
cluster: {gpu: H100-80G, nodes: 1, gpus_per_node: 8}
models: {policy: {source: Qwen/Qwen2.5-7B-Instruct}}
data: {train: {source: rows.jsonl, prompt: question, response: answer, max_prompt_tokens: 512}}
roles: {actor_train: {model: policy, backend: fsdp, optimizer: {name: adamw, lr: 1.0e-6}, update: {loss: sft}}}
edges: [data.train -> actor_train.update]
step: {prompts: 64}
run: {steps: 100}
"""


def test_a_flow_for_gpus_is_rehearsed_here(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rows = [{"question": f"{n} + {n}", "answer": str(2 * n)} for n in range(64)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "flow.yaml").write_text(FLOW)
    plan = str(tmp_path / "plan.json")
    assert call("plan", str(tmp_path / "flow.yaml"), "-o", plan) == 0
    capsys.readouterr()
    words = ("rehearse", plan, "--launcher", "inline", "--runs", str(tmp_path / "runs"))
    assert call(*words, "--steps", "1", "--format", "json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["launcher"] == "inline"
    assert {each["instruction"] for each in told["instructions"]} >= {"run data.train", "save actor_train"}
    assert all(each["steps"] == [1] for each in told["instructions"])
    (tmp_path / "rows.jsonl").write_text('{"question": "1 + 1"}\n')
    assert call("rehearse", str(tmp_path / "flow.yaml"), *words[2:], "--steps", "1") == 1
    printed = capsys.readouterr()
    assert "error[FR" in printed.err
    assert "Traceback" not in printed.err
