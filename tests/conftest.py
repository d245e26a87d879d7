"""What all tests share: the flag that accepts new goldens, and how a golden is compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import pytest
from hypothesis import HealthCheck, settings

from tests.errors.cases import HERE as CASES
from tests.errors.told import Found, diagnostics_of, frames
from tests.house.day import fuzz_seed

# Shared machines stall, and a run that fails must fail again: no deadlines, the same examples each time.
settings.register_profile(
    "flowrl", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("flowrl")

Golden = Callable[[Path, str], None]


class Told(Protocol):
    def __call__(self, found: Found, code: str, name: str = "", texts: Mapping[str, str] = ...) -> None: ...


def pytest_report_header() -> str:
    return f"fuzz seed of the day: {fuzz_seed()} (tests/house/test_fuzz.py)"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-goldens", action="store_true", help="write goldens as they come out; read them after")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """`golden(path, text)` asserts that the file holds the text; with --update-goldens it writes the file."""

    def compare(path: Path, text: str) -> None:
        if request.config.getoption("--update-goldens"):
            path.write_text(text, encoding="utf-8")
        assert path.is_file(), f"{path} is missing; make it with --update-goldens and read it"
        assert text == path.read_text(encoding="utf-8")

    return compare


@pytest.fixture
def told(golden: Golden, tmp_path: Path, request: pytest.FixtureRequest) -> Told:
    """`told(found, "FRnnnn", name)` asserts that what was found is of the code, and that the whole frame is the one in
    tests/errors/FRnnnn[-name]/expected.txt. `texts` gives the sources that stand in no file."""

    def compare(found: Found, code: str, name: str = "", texts: Mapping[str, str] = {}) -> None:
        diagnostics = diagnostics_of(found)
        assert code in {diagnostic.code for diagnostic in diagnostics}
        folder = CASES / (f"{code}-{name}" if name else code)
        if request.config.getoption("--update-goldens"):
            folder.mkdir(exist_ok=True)
        golden(folder / "expected.txt", frames(diagnostics, tmp_path, texts))

    return compare
