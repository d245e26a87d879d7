"""How the command line talks: streams, colour, frames, exit codes. The api is a fake where a verb would be slow."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from flowrl import api
from flowrl.api import Checked
from flowrl.cli.main import main
from flowrl.cli.voice import has_color, is_ascii
from flowrl.diag.diagnostic import Diagnostic, FlowError, diagnose
from flowrl.diag.span import Span
from tests.conftest import Told

Fake = Callable[..., object]


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(list(arguments))
    assert isinstance(left.value.code, int)
    return left.value.code


def raising(error: BaseException) -> Fake:
    def fake(*_: object, **__: object) -> object:
        raise error

    return fake


def test_check_reports_on_stderr_and_counts_on_stdout(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    flow = tmp_path / "f.yaml"
    flow.write_text("flowrl: 1\n")
    found = diagnose("FR0905", Span(str(flow), 1, 1, 1, 7), path="runs/x", reason="y", kept="z")
    monkeypatch.setattr(api, "check", lambda *_, **__: Checked((), (found,)))
    assert call("check", str(flow)) == found.exit_code
    printed = capsys.readouterr()
    assert printed.out == f"{flow}: 1 error\n"
    assert printed.err.startswith("error[FR0905]: ")
    assert "flowrl: 1" in printed.err
    assert call("check", str(flow), "--format", "json") == found.exit_code
    printed = capsys.readouterr()
    assert [d["code"] for d in json.loads(printed.out)] == ["FR0905"]
    assert not printed.err


def test_frame_quotes_the_flag(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    found = diagnose("FR9901", Span("--set", 2, 1, 2, 4), detail="here")
    monkeypatch.setattr(api, "plan_of", raising(FlowError(found)))
    assert call("plan", "f.yaml", "--set", "a=1", "--set", "b.c=2") == 70
    assert "b.c=2" in capsys.readouterr().err


def test_fault_of_ours_is_a_frame_with_a_traceback_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, told: Told
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(api, "plan_of", raising(KeyError("actor_train")))
    assert call("plan", "f.yaml") == 70
    printed = capsys.readouterr()
    assert not printed.out
    assert printed.err.startswith("error[FR9901]: internal error")
    assert "Traceback" not in printed.err
    (kept,) = tmp_path.glob("flowrl-traceback-*.txt")
    assert kept.name in printed.err.replace("\n", "")
    assert "KeyError: 'actor_train'" in kept.read_text()
    assert call("plan", "f.yaml", "--format", "json") == 70
    told(msgspec.json.decode(capsys.readouterr().err, type=list[Diagnostic]), "FR9901")


def test_errors_in_json_go_to_stderr(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(api, "plan_of", raising(FlowError(diagnose("FR9901", detail="x"))))
    assert call("plan", "f.yaml", "--format", "json") == 70
    printed = capsys.readouterr()
    assert not printed.out
    assert json.loads(printed.err)[0]["code"] == "FR9901"


def test_interrupt_keeps_the_shells_status(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    class FakeInterruptError(FlowError):
        exit_status = 143

    monkeypatch.setattr(api, "run", raising(FakeInterruptError(diagnose("FR9901", detail="x"))))
    assert call("run", "f.yaml") == 143
    monkeypatch.setattr(api, "run", raising(KeyboardInterrupt()))
    assert call("run", "f.yaml") == 130
    assert capsys.readouterr().err.rstrip().endswith("interrupted")


def fake_result(tmp_path: Path) -> SimpleNamespace:
    stage = SimpleNamespace(name="grpo", steps=120, checkpoint=tmp_path / "checkpoints" / "grpo" / "step-000120")
    return SimpleNamespace(
        folder=tmp_path,
        state="finished",
        metric="reward.rewards@val",
        first_reward=0.352,
        last_reward=0.871,
        stages=(stage,),
        checkpoint=stage.checkpoint,
        plan=tmp_path / "plan.json",
        trace=tmp_path / "trace.json",
    )


def test_run_ends_with_reward_and_places(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(api, "run", lambda *_, **__: fake_result(tmp_path))
    assert call("run", "f.yaml") == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert line == (
        "mean reward 0.352 before, 0.871 after (reward.rewards@val) · "
        f"{tmp_path}: plan.json, trace.json, checkpoints/grpo/step-000120"
    )
    assert call("run", "f.yaml", "--format", "json") == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["reward_before"], record["reward_after"]) == (0.352, 0.871)
    assert record["stages"] == [{"name": "grpo", "steps": 120, "checkpoint": str(fake_result(tmp_path).checkpoint)}]


@pytest.mark.parametrize(("written", "step"), [("runs/x", None), ("runs/x@7", 7)])
def test_export_takes_a_step(
    written: str, step: int | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[object] = []

    def fake_export(run_folder: Path, output: Path, step: int | None = None, role: str | None = None) -> Path:
        seen.extend([run_folder, output, step, role])
        return output

    monkeypatch.setattr(api, "export", fake_export)
    assert call("export", written, "-o", "out", "--role", "critic") == 0
    assert seen == [Path("runs/x"), Path("out"), step, "critic"]
    assert capsys.readouterr().out == "wrote out\n"


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colour_only_on_a_terminal_without_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert has_color(FakeTerminal())
    assert not has_color(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not has_color(FakeTerminal())


def test_ascii_where_the_stream_cannot_do_more() -> None:
    assert is_ascii(io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert not is_ascii(io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))


def test_main_imports_no_planner() -> None:
    """`flowrl --help` stays quick: what plans is imported when a command runs."""
    code = (
        "import sys; import flowrl.cli.main; print([m for m in sys.modules if m.startswith(('pydantic', 'networkx'))])"
    )
    import subprocess

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_frames_show_no_byte_order_mark(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    flow = tmp_path / "f.yaml"
    flow.write_text("flowrl: 1\nname: x\nstpe: {prompts: 1}\n", encoding="utf-8-sig")
    assert call("check", str(flow)) == 1
    plain = capsys.readouterr().err
    flow.write_text("flowr: 1\nname: x\nstep: {prompts: 1}\n", encoding="utf-8-sig")
    assert call("check", str(flow)) == 1
    first = capsys.readouterr().err
    assert "\ufeff" not in plain + first
    assert "1 │ flowr: 1\n" in first
