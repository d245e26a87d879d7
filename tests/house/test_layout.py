"""The tree is as the house says: rooms in layers and in the README, tests that mirror the package."""

from __future__ import annotations

import re
import tomllib

from tests.house.tree import PACKAGE, ROOT, rooms, tracked_files

LANDFILL = {"utils.py", "helpers.py", "common.py", "misc.py", "manager.py"}
DATA_ROOMS = {"presets"}
"""Rooms that hold data files and no code, so no layer."""
OTHER_TESTS = {"benchmarks", "house", "errors", "golden", "end_to_end", "contracts"}


def layers() -> set[str]:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    lines = next(c["layers"] for c in contracts if c["type"] == "layers")
    return {name.strip().removeprefix("flowrl.") for line in lines for name in re.split("[|:]", line)}


def test_every_room_is_in_a_layer() -> None:
    assert {name.partition(".")[0] for name in layers()} == set(rooms()) - DATA_ROOMS


def test_every_part_of_a_room_that_is_in_several_layers_is_in_one() -> None:
    parts = {name for name in layers() if "." in name}
    split = {name.partition(".")[0] for name in parts}
    there = {f"{room}.{each.stem}" for room in split for each in (PACKAGE / room).iterdir() if each.name[0] != "_"}
    assert parts == there
    assert not split & layers()


def test_every_room_is_in_the_readme() -> None:
    tree = (ROOT / "README.md").read_text(encoding="utf-8").rpartition("```text")[2]
    named = set(re.findall(r"^ +(\w+)/", tree, flags=re.MULTILINE))
    assert set(rooms()) <= named


def test_every_module_says_what_it_is() -> None:
    silent = [p for p in sorted(PACKAGE.rglob("*.py")) if not p.read_text(encoding="utf-8").lstrip().startswith('"""')]
    assert not silent


def test_no_landfill() -> None:
    assert not [file for file in tracked_files() if file.name in LANDFILL]


def test_tests_mirror_the_package() -> None:
    folders = {
        p.parent.relative_to(ROOT / "tests").parts[0]
        for p in (ROOT / "tests").rglob("*.py")
        if p.parent.name != "tests"
    }
    assert folders <= set(rooms()) | OTHER_TESTS
