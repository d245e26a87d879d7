"""Environments and templates of the user: a class takes what Python says that it takes, and nothing is run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flowrl.compiler.lower.graph import lower_stage
from flowrl.diag.diagnostic import Diagnostic, FlowError
from flowrl.spec import loads
from tests.compiler.constructs import EDGES, HEAD, flow

TALK = (
    "data.seeds -> world.reset",
    "actor_infer.generate <-> world.step",
    "actor_infer.generate -> advantage.estimate",
    *EDGES[3:],
)


def told(folder: Path, text: str) -> list[Diagnostic]:
    try:
        lower_stage(loads(text, folder=str(folder)), 0)
    except FlowError as error:
        return list(error.diagnostics)
    return []


def told_env(folder: Path, env: str, args: dict[str, Any] | None = None) -> list[Diagnostic]:
    given = f", args: {json.dumps(args)}" if args else ""
    world = f'{{kind: env, env: "{env}", max_turns: 4{given}}}'
    return told(folder, flow(TALK, world=world, reward="", advantage="{estimator: gigpo}"))


def codes(found: list[Diagnostic]) -> list[str]:
    return [diagnostic.code for diagnostic in found]


def labels(found: list[Diagnostic]) -> list[str]:
    return [label.text for diagnostic in found for label in diagnostic.labels]


PLAIN = "class Maze:\n    def __init__(self, size, doors=1, *, deep=False): ...\n"
CLASSES = (
    PLAIN,
    "class Maze:\n    pass\n",
    "class Maze(object):\n    size = 3\n",
    "class Maze:\n    def __init__(self, size=1, **rest): ...\n",
    "class Maze:\n    def __init__(self, /, size): ...\n",
    "class Maze:\n    def __init__(self, *rest, size=1): ...\n",
    "class Maze:\n    def __init__(here, *, size, doors): ...\n",
    "class Room:\n    def __init__(self, doors=1): ...\nclass Maze(Room): ...\n",
    "class Room:\n    def __init__(self, doors=1): ...\nclass Hall(Room): ...\nclass Maze(Hall):\n"
    "    def __init__(self, size): ...\n",
    "class Maze:\n    def __init__(self, size): ...\n    def __init__(self, doors): ...\n",
    "class Maze:\n    if True:\n        def __init__(self, size): ...\n",
)
ARGUMENTS = ({}, {"size": 3}, {"doors": 2}, {"size": 3, "doors": 2}, {"size": 3, "deep": True}, {"x": 1})


@pytest.mark.parametrize("text", CLASSES)
def test_arguments_fit_where_python_makes_an_instance(tmp_path: Path, text: str) -> None:
    (tmp_path / "maze.py").write_text(text, encoding="utf-8")
    space: dict[str, Any] = {}
    exec(text, space)  # noqa: S102
    for args in ARGUMENTS:
        found = codes(told_env(tmp_path, "maze.py:Maze", args))
        try:
            space["Maze"](**args)
        except TypeError:
            assert set(found) == {"FR0214"}, args
        else:
            assert found == [], args


@pytest.mark.parametrize(
    "text",
    [
        "from nowhere import Maze\n",
        "import nowhere as Maze\n",
        "Maze = make('maze')\n",
        "from nowhere import Env\nclass Maze(Env): ...\n",
        "import nowhere\nclass Maze(nowhere.Env): ...\n",
        "class A: ...\nclass B: ...\nclass Maze(A, B): ...\n",
        "from dataclasses import dataclass\n@dataclass\nclass Maze:\n    size: int = 3\n",
        "class Maze(metaclass=nowhere): ...\n",
        "class Maze:\n    def __new__(cls, size): ...\n",
        "class Maze:\n    __init__ = made\n",
        "class Maze:\n    @wrapped\n    def __init__(self): ...\n",
        "class Maze(Maze): ...\n",
        "class Room(Maze): ...\nclass Maze(Room): ...\n",
        "raise SystemExit(1)\nclass Maze:\n    def __init__(self, size): ...\n",
    ],
)
def test_what_the_tree_does_not_tell_is_left_to_the_run(tmp_path: Path, text: str) -> None:
    (tmp_path / "maze.py").write_text(text, encoding="utf-8")
    assert told_env(tmp_path, "maze.py:Maze", {"size": 3}) == []


@pytest.mark.parametrize(
    ("env", "code", "label"),
    [
        ("maze.py:Mase", "FR0263", "`maze.py` has no class `Mase`"),
        ("maze.py:small", "FR0263", "`small` of `maze.py` is a function, not a class"),
        ("maze.py", "FR0263", "`maze.py` is a file, and no class in it is named"),
        ("maze.py:", "FR0263", "`maze.py` is a file, and no class in it is named"),
        ("mase.py:Maze", "FR0262", "no file `mase.py`"),
        ("rooms/maze.py:Maze", "FR0262", "no file `rooms/maze.py`"),
        ("folder.py:Maze", "FR0262", "no file `folder.py`"),
        ("Maze", "FR0262", "no file `Maze`"),
        (":Maze", "FR0262", "no file `:Maze`"),
        ("gem:", "FR0262", "no file `gem:`"),
        ("broken.py:Maze", "FR0212", "`broken.py` line 1: '(' was never closed"),
        ("odd.py:Maze", "FR0212", "`odd.py` line 1: it is not UTF-8 text"),
    ],
)
def test_what_is_no_environment(tmp_path: Path, env: str, code: str, label: str) -> None:
    (tmp_path / "maze.py").write_text("class Maze: ...\ndef small(): ...\n", encoding="utf-8")
    (tmp_path / "broken.py").write_text("class Maze(\n", encoding="utf-8")
    (tmp_path / "odd.py").write_bytes(b"\xff\xfe")
    (tmp_path / "folder.py").mkdir()
    found = told_env(tmp_path, env)  # of two ops, `reset` and `step`
    assert (codes(found), labels(found)) == ([code], [label])


@pytest.mark.parametrize("env", ["gem:game:Sokoban-v0", "gem:room", "worlds:Maze"])
def test_an_environment_of_a_library_is_no_file(tmp_path: Path, env: str) -> None:
    assert told_env(tmp_path, env, {"boxes": 1}) == []


def test_a_missing_argument_is_named(tmp_path: Path) -> None:
    (tmp_path / "maze.py").write_text(PLAIN, encoding="utf-8")
    assert labels(told_env(tmp_path, "maze.py:Maze", {"doors": 2})) == ["`Maze` needs `size`"]


JUDGE = '{judge: {template: "asks/judge.j2", parse: "f.py:verdict", endpoint: "https://judge.example/v1"}}'


@pytest.mark.parametrize(("file", "near"), [("asks/juge.j2", True), ("asks/judge.py", False), ("juge.j2", False)])
def test_a_near_template_is_one_of_the_same_folder_and_kind(
    folder: Path, tmp_path: Path, file: str, near: bool
) -> None:
    (tmp_path / "f.py").write_text((folder / "f.py").read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "asks").mkdir()
    (tmp_path / file).write_text("{{ prompt }}", encoding="utf-8")
    (problem,) = told(tmp_path, flow(reward=JUDGE))
    assert problem.code == "FR0261"
    lines = [help.replacement for help in problem.helps]
    assert lines == ([f"  reward: {JUDGE}".replace("asks/judge.j2", file)] if near else [None])
    (tmp_path / "asks" / "judge.j2").write_text("{{ prompt }}", encoding="utf-8")
    assert told(tmp_path, flow(reward=JUDGE)) == []


def test_the_template_of_each_source_of_a_mix_is_looked_at(folder: Path) -> None:
    head = HEAD.replace("source: val.jsonl", "template: none.j2, source: val.jsonl").replace(
        "  seeds:", "  both: {mix: {train: 0.5, val: 0.5}}\n  seeds:"
    )
    found = told(folder, flow(("data.both -> actor_infer.generate", *EDGES[1:]), head=head))
    assert (codes(found), labels(found)) == (["FR0261"], ["no file `none.j2`"])
