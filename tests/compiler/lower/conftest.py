"""The folder that holds the user functions and the template of tests/compiler/constructs.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compiler.constructs import CODE


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("flow")
    (folder / "f.py").write_text(CODE, encoding="utf-8")
    (folder / "t.j2").write_text("{{ prompt }} {{ response }}\n", encoding="utf-8")
    return folder
