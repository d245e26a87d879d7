"""Usage errors, help and exit codes: what needs no flow."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from flowrl.cli.main import flowrl, main
from flowrl.diag.catalogue import CODES
from flowrl.spec.presets import preset_names


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(list(arguments))
    code = left.value.code
    assert isinstance(code, int)
    return code


def test_bare_call_prints_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert call() == 0
    assert "Usage: flowrl" in capsys.readouterr().out


def test_help_lists_every_command_once_under_its_task(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--help") == 0
    lines = capsys.readouterr().out.partition("Show this message and exit.")[2].split("\n")
    names = [line.split()[0] for line in lines if line.startswith("  ")]
    assert sorted(names) == sorted(flowrl.commands)
    tasks = [line.rstrip(":") for line in lines if line and not line.startswith(" ")]
    assert tasks == ["Write a flow", "Plan it", "Run it", "Look at a run", "This machine"]
    assert names.index("check") < names.index("plan") < names.index("run") < names.index("report")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_the_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("completion", shell) == 0
    assert f"_FLOWRL_COMPLETE={shell}_complete" in capsys.readouterr().out


def test_completion_completes_commands_and_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_FLOWRL_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_CWORD", "1")
    monkeypatch.setenv("COMP_WORDS", "flowrl re")
    call()
    assert capsys.readouterr().out.split() == ["plain,rehearse", "plain,resume", "plain,report"]


@pytest.mark.parametrize(
    ("arguments", "message", "help_line"),
    [
        (["plna"], "no command `plna`", "a command with a near name exists: plan"),
        (["zzz"], "no command `zzz`", "the commands are init, check, plan"),
        (["plan", "--clutser", "x", "f.yaml"], "no option `--clutser`", "an option with a near name exists: --cluster"),
        (["plan"], "missing argument `FILE|PLAN`", "flowrl plan --help"),
        (["plan", "f.yaml", "--width", "7"], "7 is not in the range", "flowrl plan --help"),
        (["export", "run@x", "-o", "out"], "`x` after @ is not a step number", "flowrl export --help"),
        (["explain", "FR990"], "no code `FR990`", "a code with a near name exists: FR9901"),
    ],
)
def test_usage_errors(arguments: list[str], message: str, help_line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(*arguments) == 2
    printed = capsys.readouterr()
    assert not printed.out
    assert printed.err.startswith("error: ")
    assert message in printed.err
    assert help_line in printed.err
    assert "?" not in printed.err, "facts, not questions"


@pytest.mark.parametrize("code", ["FR9901"])
def test_explain_prints_the_page(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("explain", code) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"# {code}: {CODES[code].headline}\n")
    assert call("explain", code, "--format", "json") == 0
    assert json.loads(capsys.readouterr().out) == {"code": code, "page": text}


def test_init_without_a_preset_lists_them_with_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("init") == 2
    printed = capsys.readouterr()
    assert not printed.out
    first, *rows = printed.err.splitlines()[:-1]
    assert first == "error: missing option `--preset`"
    assert rows[0] == "   = help: the presets are"
    told = dict(row.split(maxsplit=1) for row in rows[1:])
    assert list(told) == preset_names()
    assert told["dr_grpo"] == "GRPO without its two biases"
    assert max(map(len, rows)) <= 100


def test_the_list_of_commands_cuts_none_off() -> None:
    shown = CliRunner().invoke(flowrl, ["--help"], terminal_width=80)
    assert not [line for line in shown.output.splitlines() if line.startswith("  ") and line.endswith("...")]
