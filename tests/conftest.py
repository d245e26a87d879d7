"""What all tests share: the flag that accepts new goldens, and how a golden is compared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.house.day import fuzz_seed

# Shared machines stall, and a run that fails must fail again: no deadlines, the same examples each time.
settings.register_profile(
    "flowrl", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("flowrl")

Golden = Callable[[Path, str], None]


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
