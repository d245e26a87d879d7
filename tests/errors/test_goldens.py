"""Each case of tests/errors prints its frame, byte for byte, and the frame is of the case's code."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from flowrl.diag.render import render_text
from tests.conftest import Golden
from tests.errors.cases import CASES, code_of, diagnostics_of, read_source, sets_of


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case_prints_its_frame(case: Path, golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / case.name
    shutil.copytree(case, folder)
    monkeypatch.chdir(folder)
    found = diagnostics_of(folder)
    assert code_of(case) in {diagnostic.code for diagnostic in found}
    golden(case / "expected.txt", render_text(found, lambda file: read_source(file, sets_of(folder))))
