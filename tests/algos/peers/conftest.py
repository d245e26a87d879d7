"""Prints the largest difference of each comparison, so that a run of `make test-references` is a table to read."""

from __future__ import annotations

import pytest

from tests.algos.peers.agreement import table


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    lines = table()
    if lines:
        terminalreporter.section("largest differences from peers")
        for line in lines:
            terminalreporter.write_line(line)
