"""No tracked file holds a path of the machine it was written on."""

from __future__ import annotations

import re

from tests.house.tree import ROOT, tracked_files

# Written in pieces, so that this file does not hold what it looks for.
MACHINE_PATH = re.compile(r"(?<![\w./{}$-])/(?:" + "|".join(["work", "root", r"home/\w+", "Users", "opt"]) + r")/\w")


def test_pattern() -> None:
    assert MACHINE_PATH.search("see /" + "work/main")
    assert not MACHINE_PATH.search("docs/" + "work/main and $HOME/" + "opt/x")


def test_no_machine_path_is_tracked() -> None:
    found: list[str] = []
    for file in tracked_files():
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        lines = enumerate(text.splitlines(), start=1)
        found.extend(f"{file.relative_to(ROOT)}:{n}: {line.strip()}" for n, line in lines if MACHINE_PATH.search(line))
    assert not found
