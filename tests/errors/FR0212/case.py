"""The broken file is written here, so that tools which read all Python files of the tree never see it."""

from __future__ import annotations

from pathlib import Path

from flowrl import api
from flowrl.diag.diagnostic import Diagnostic


def diagnostics() -> tuple[Diagnostic, ...]:
    Path("rewards.py").write_text("def exact(response, answer:\n    return []\n", encoding="utf-8")
    return api.check("flow.yaml").diagnostics
