"""Every exit code of docs/reference/cli.md, by the real command in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PPO = str(EXAMPLES / "ppo_7b.yaml")
COMMAND = Path(sys.executable).with_name("flowrl")


def call(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **environment}
    return subprocess.run([COMMAND, *arguments], capture_output=True, text=True, env=env, check=False)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("check", PPO), 0),
        (("check", PPO, "--set", "step.promts=4"), 1),
        (("show", "nowhere.yaml"), 1),
        (("chek", PPO), 2),
        (("check",), 2),
        (("show", PPO, "--after", "infer_typs"), 2),
        (("explain", "no_such_key"), 2),
        (("check", PPO, "--cluster", "1xH100-80G"), 4),
        (("plan", PPO, "--cluster", "1xH100-80G", "--format", "sarif"), 4),
    ],
)
def test_code(arguments: tuple[str, ...], code: int, tmp_path: Path) -> None:
    done = call(*arguments)
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert bool(done.stderr) == (code != 0 and "sarif" not in arguments)


def test_failed_run_is_five(tmp_path: Path) -> None:
    """The folder of runs would have to be in a file."""
    (tmp_path / "file").touch()
    done = call("run", str(EXAMPLES / "ppo.yaml"), "--runs", str(tmp_path / "file" / "runs"))
    assert (done.returncode, done.stderr.startswith("error[FR0905]")) == (5, True)


def test_fault_of_ours_is_seventy(tmp_path: Path) -> None:
    """A package that plans is broken: the frame says whose fault it is, and the traceback lies in a file."""
    broken = tmp_path / "networkx"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise ValueError('broken')\n")
    done = call("check", PPO, PYTHONPATH=str(tmp_path), TMPDIR=str(tmp_path))
    assert done.returncode == 70
    assert done.stderr.startswith("error[FR9901]: internal error")
    assert "Traceback" not in done.stderr
    assert list(tmp_path.glob("flowrl-traceback-*"))


def test_interrupted_is_130(tmp_path: Path) -> None:
    """Ctrl-C while a named pipe keeps the flow from being read."""
    pipe = tmp_path / "flow.yaml"
    os.mkfifo(pipe)
    process = subprocess.Popen([COMMAND, "check", str(pipe)], stderr=subprocess.PIPE, text=True)
    with pipe.open("w"):  # opens when the command has begun to read
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert told.strip().endswith("interrupted")


def test_pipe_that_closes_is_no_fault() -> None:
    """`flowrl schema | head -1`: nothing is told, and 0."""
    with subprocess.Popen([COMMAND, "schema"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        told = process.stderr.read()
    assert (process.returncode, told) == (0, "")
