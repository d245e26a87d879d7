"""The completion scripts, sourced by the shells that they are for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ASK = {
    "bash": (
        "bash",
        "--norc",
        "-c",
        'eval "$(flowrl completion bash)"; COMP_WORDS=(flowrl {word}); COMP_CWORD=1; '
        '_flowrl_completion flowrl; printf "%s\\n" "${COMPREPLY[@]}"',
    ),
    # What `_describe` is given is what the menu lists; drawing it needs a terminal.
    "zsh": (
        "zsh",
        "-f",
        "-c",
        "autoload -Uz compinit; compinit -u -D; "
        '_describe() { print -l "${(@P)3}" }; '
        'eval "$(flowrl completion zsh)"; words=(flowrl {word}); CURRENT=2; _flowrl_completion',
    ),
    "fish": ("fish", "--no-config", "-c", 'flowrl completion fish | source; complete -C "flowrl {word}"'),
}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(
    ("word", "wanted"), [("re", {"rehearse", "resume", "report"}), ("why", {"why-not"}), ("zz", set())]
)
def test_a_shell_completes_commands(shell: str, word: str, wanted: set[str], tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    scripts = os.pathsep.join((sysconfig.get_path("scripts"), str(Path(sys.executable).parent), os.environ["PATH"]))
    done = subprocess.run(
        [part.replace("{word}", word) for part in ASK[shell]],
        env={**os.environ, "PATH": scripts, "HOME": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.stderr
    # zsh and fish add what a command does.
    assert {line.replace(":", "\t").split("\t")[0] for line in done.stdout.splitlines() if line} == wanted
