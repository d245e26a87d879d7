"""The public names. A new one is a promise: add it to exports.txt knowingly."""

from __future__ import annotations

import importlib
from pathlib import Path

GOLDEN = Path(__file__).with_name("exports.txt")


def test_public_names_are_as_in_the_golden() -> None:
    lines = GOLDEN.read_text(encoding="utf-8").splitlines()
    wanted = {line.partition(": ")[0]: line.partition(": ")[2].split() for line in lines if line}
    found = {module: sorted(importlib.import_module(module).__all__) for module in wanted}
    assert found == wanted


def test_golden_names_exist() -> None:
    for line in GOLDEN.read_text(encoding="utf-8").splitlines():
        module, _, names = line.partition(": ")
        assert all(hasattr(importlib.import_module(module), name) for name in names.split())
