"""The line budget: no file over 400 lines, no function over 80, and a limit for each room.

Prints a table of rooms and exits 1 when anything is over. A room that needs more gets a smaller neighbour or a reason
in the commit that raises its limit here.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

FILE_LINES = 400
FUNCTION_LINES = 80

ROOM_LINES: Mapping[str, int] = {
    "flowrl/algos": 1600,
    "flowrl/api": 3300,
    "flowrl/backends": 14900,
    "flowrl/cli": 1900,
    "flowrl/compiler": 7100,
    "flowrl/diag": 3400,
    "flowrl/execution": 2000,
    "flowrl/explain": 2900,
    "flowrl/graph": 3300,
    "flowrl/machine": 2900,
    "flowrl/placement": 14700,
    "flowrl/plan": 1600,
    "flowrl/presets": 50,
    "flowrl/program": 1300,
    "flowrl/report": 4300,
    "flowrl/runtime": 9800,
    "flowrl/spec": 7100,
    "tests": 54000,
    "tools": 1000,
}


@dataclass(frozen=True, slots=True)
class Room:
    name: str
    files: int
    lines: int
    limit: int


def python_files(folder: Path) -> list[Path]:
    """Python files below `folder`, in a fixed order."""
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


def line_count(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def long_functions(source: str, limit: int = FUNCTION_LINES) -> Iterator[tuple[str, int, int]]:
    """(name, first line, lines) of each function over `limit`, decorators not counted."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        if lines > limit:
            yield node.name, node.lineno, lines


def over_budget(path: Path, shown: str) -> Iterator[str]:
    """What of one file is over the limits, one line each."""
    lines = line_count(path)
    if lines > FILE_LINES:
        yield f"{shown}: {lines} lines, {lines - FILE_LINES} over the {FILE_LINES} of a file"
    for name, first, length in long_functions(path.read_text(encoding="utf-8")):
        over = length - FUNCTION_LINES
        yield f"{shown}:{first}: `{name}` has {length} lines, {over} over the {FUNCTION_LINES} of a function"


def measure(root: Path, limits: Mapping[str, int]) -> tuple[list[Room], list[str]]:
    """Every room with its total, and every finding. A room of flowrl/ without a limit is a finding."""
    rooms: list[Room] = []
    findings: list[str] = []
    for name, limit in limits.items():
        files = python_files(root / name)
        lines = sum(line_count(path) for path in files)
        rooms.append(Room(name, len(files), lines, limit))
        if lines > limit:
            findings.append(f"{name}: {lines} lines, {lines - limit} over its {limit}")
        findings.extend(finding for path in files for finding in over_budget(path, str(path.relative_to(root))))
    for folder in sorted((root / "flowrl").iterdir()):
        name = f"flowrl/{folder.name}"
        if (folder / "__init__.py").is_file() and name not in limits:
            findings.append(f"{name}: no limit in tools/budget.py")
    return rooms, findings


def table(rooms: list[Room]) -> str:
    head = f"{'room':<20}{'files':>6}{'lines':>8}{'limit':>8}{'used':>7}"
    rows = [f"{r.name:<20}{r.files:>6}{r.lines:>8}{r.limit:>8}{r.lines / r.limit:>7.0%}" for r in rooms]
    total = f"{'all':<20}{sum(r.files for r in rooms):>6}{sum(r.lines for r in rooms):>8}"
    return "\n".join([head, *rows, total])


def main() -> int:
    rooms, findings = measure(ROOT, ROOM_LINES)
    sys.stdout.write(table(rooms) + "\n")
    for finding in findings:
        sys.stdout.write(f"over budget: {finding}\n")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
