"""The folder that holds the user functions of tests/compiler/constructs.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compiler.constructs import CODE


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("flow")
    (folder / "f.py").write_text(CODE, encoding="utf-8")
    return folder
