"""`flowrl sweep`, `plan --from` and `explain --from` as commands."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from flowrl import api
from tests.api.test_sweep import flow
from tests.cli.test_commands import call

Captured = pytest.CaptureFixture[str]


def test_sweep_prints_a_table_and_writes_a_folder(capsys: Captured, tmp_path: Path) -> None:
    out = tmp_path / "new" / "folder"
    assert call("sweep", flow(tmp_path), "--gpus", "4,12", "--gpu", "H20", "-o", str(out)) == 0
    printed = capsys.readouterr()
    assert "FR0512" in printed.out
    assert f"wrote {out}: sweep.json, sweep.csv, sweep.svg" in printed.out
    assert [line.split()[:2] for line in printed.err.splitlines()] == [["planning", "1/2"], ["planning", "2/2"]]
    assert sorted(file.name for file in out.iterdir()) == ["sweep.csv", "sweep.json", "sweep.svg"]
    points = json.loads((out / "sweep.json").read_text(encoding="utf-8"))["points"]
    assert [point["verdict"] for point in points] == ["fits", "refused"]


@pytest.mark.parametrize(
    ("form", "read"),
    [("json", lambda text: json.loads(text)["points"]), ("csv", lambda text: list(csv.DictReader(text.splitlines())))],
)
def test_forms_of_a_sweep(form: str, read: Callable[[str], list[object]], capsys: Captured, tmp_path: Path) -> None:
    assert call("sweep", flow(tmp_path), "--gpus", "4", "--set", "step.prompts=16,32", "--format", form) == 0
    assert len(read(capsys.readouterr().out)) == 2


def test_exit_codes_of_a_sweep(capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """0 where a point fits, 4 where none does, 1 where all are refused or a flag is wrong, 130 after Ctrl-C."""
    file = flow(tmp_path)
    large = ("--set", "models.policy.source=Qwen/Qwen2.5-72B")
    assert call("sweep", file, "--gpus", "1,12", *large) == 4
    assert call("sweep", file, "--gpus", "12") == 1
    assert call("sweep", file, "--gpus", "x") == 1
    assert "error[FR0740]" in capsys.readouterr().err
    assert call("sweep", file, "--objective", "speed") == 2
    assert call("sweep", file, "-o", str(tmp_path / "rows.py" / "x")) == 1
    assert "error[FR0026]" in capsys.readouterr().err

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["flowrl.api.sweep"], "compile_spec", stop)
    assert call("sweep", file, "--gpus", "4,8") == 130
    assert "0 of 2 points" in capsys.readouterr().out


def test_plan_from_prints_what_moves(capsys: Captured, tmp_path: Path) -> None:
    file, plan = flow(tmp_path), tmp_path / "plan.json"
    assert call("plan", file, "-o", str(plan)) == 0
    capsys.readouterr()
    moved = ("--from", str(plan), "--cluster", "16xH100-80G")
    made = tmp_path / "new.json"
    assert call("plan", file, *moved, "-o", str(made)) == 0
    assert "verdict" in capsys.readouterr().out
    assert api.loads(made.read_bytes()).cluster.name == "16xH100-80G"
    assert call("plan", file, *moved, "--format", "json") == 0
    assert json.loads(capsys.readouterr().out)["flowrl_replan"] == 1
    assert call("explain", file, "saved_per_step", *moved) == 0
    assert "a - b" in capsys.readouterr().out
    assert call("plan", file, *moved, "--set", "models.policy.source=Qwen/Qwen2.5-14B", "--cluster", "1xA10") == 4
    assert "error[FR0501]" in capsys.readouterr().err
    assert call("plan", file, *moved, "--against", str(plan)) == 2
    assert "--from and --against exclude each other" in capsys.readouterr().err
    assert call("plan", file, "--from", str(tmp_path / "none.json")) == 1
    assert "error[FR0706]" in capsys.readouterr().err
