"""docs/reference/python.md is one program: its blocks run in order, and its flow checks without errors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from flowrl import api
from tests.house.test_flows import ROOT, SNIPPET, beside, errors_of

PAGE = ROOT / "docs" / "reference" / "python.md"


def test_the_page_runs(tmp_path: Path) -> None:
    blocks = [text for kind, text in SNIPPET.findall(PAGE.read_text(encoding="utf-8")) if kind == "python"]
    beside(tmp_path)
    ends = "\ngame.step(prompts=64)\nassert game.spec() and mixed.spec() and not flow.check().diagnostics\n"
    (tmp_path / "program.py").write_text("\n".join(blocks) + ends, encoding="utf-8")
    command = [sys.executable, "program.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert not errors_of(tmp_path / "page.yaml")
    assert [stage.name for stage in api.plan(tmp_path / "page.yaml").stages] == ["warm", "main"]
    assert "actor_infer.generate@val" in done.stdout
