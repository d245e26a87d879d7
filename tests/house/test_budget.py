"""tools/budget.py counts as it says."""

from __future__ import annotations

from pathlib import Path

from tools.budget import FILE_LINES, FUNCTION_LINES, long_functions, measure


def function(lines: int) -> str:
    return "def f():\n" + "    pass\n" * (lines - 1)


def test_functions_at_and_over_the_limit() -> None:
    assert not list(long_functions(function(FUNCTION_LINES)))
    assert list(long_functions("\n" + function(FUNCTION_LINES + 1))) == [("f", 2, FUNCTION_LINES + 1)]


def test_methods_and_inner_functions_count() -> None:
    source = "class A:\n" + "".join("    " + line + "\n" for line in function(FUNCTION_LINES + 2).splitlines())
    assert [name for name, _, _ in long_functions(source)] == ["f"]


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_rooms_files_and_missing_limits(tmp_path: Path) -> None:
    write(tmp_path / "flowrl" / "graph" / "__init__.py", "x = 1\n" * (FILE_LINES + 1))
    write(tmp_path / "flowrl" / "plan" / "__init__.py", "x = 1\n")
    rooms, findings = measure(tmp_path, {"flowrl/graph": 300})
    assert [(room.files, room.lines) for room in rooms] == [(1, FILE_LINES + 1)]
    assert len(findings) == 3
    assert any("over the 400 of a file" in line for line in findings)
    assert any("over its 300" in line for line in findings)
    assert "flowrl/plan: no limit in tools/budget.py" in findings
