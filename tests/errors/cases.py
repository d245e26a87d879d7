"""One folder a case: FRnnnn or FRnnnn-what. It holds what is wrong, and expected.txt with what is printed.

flow.yaml     loaded (FR00, FR01) or checked (all other codes) in a copy of the folder
flow.bytes.py instead of it: a Python file that defines FLOW, the bytes of flow.yaml, for files too odd to keep
flow.py       or a script that builds a flow in Python and raises FlowError
case.py       or anything else: defines diagnostics(), which gives or raises what is printed
sets.txt      `--set` flags, one a line

A folder with expected.txt alone is the frame of what a test elsewhere provokes (tests/errors/told.py): no case to run.
"""

from __future__ import annotations

import runpy
from collections.abc import Iterable
from pathlib import Path

from flowrl.diag.diagnostic import Diagnostic, FlowError
from flowrl.spec import load
from flowrl.spec.presets import PREFIX, preset_text

HERE = Path(__file__).parent
MADE_OF = ("flow.yaml", "flow.bytes.py", "flow.py", "case.py")
CASES = sorted(path for path in HERE.glob("FR*") if any((path / name).exists() for name in MADE_OF))


def code_of(case: Path) -> str:
    return case.name.partition("-")[0]


def sets_of(case: Path) -> list[str]:
    flags = case / "sets.txt"
    return flags.read_text(encoding="utf-8").splitlines() if flags.is_file() else []


def diagnostics_of(case: Path) -> tuple[Diagnostic, ...]:
    """What `case`, which is the working directory, is told."""
    try:
        return tuple(_found(case))
    except FlowError as error:
        return error.diagnostics


def _found(case: Path) -> Iterable[Diagnostic]:
    if (case / "case.py").is_file():
        return runpy.run_path("case.py")["diagnostics"]()
    if (case / "flow.py").is_file():
        runpy.run_path("flow.py", run_name="__main__")
        return ()
    if (case / "flow.bytes.py").is_file():
        Path("flow.yaml").write_bytes(runpy.run_path("flow.bytes.py")["FLOW"])
    if code_of(case)[:4] in ("FR00", "FR01"):
        load("flow.yaml", sets_of(case))
        return ()
    from flowrl import api

    return api.check("flow.yaml", sets_of(case)).diagnostics


def read_source(file: str, sets: list[str]) -> str | None:
    if file == "--set":
        return "\n".join(sets)
    if file.startswith(PREFIX):
        return preset_text(file.removeprefix(PREFIX))
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
