"""Every flow that is shipped or shown passes `check`, and the pages made from the code are as the code is now."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowrl import api
from flowrl.diag.diagnostic import Severity
from tests.house.tree import ROOT
from tools import pages

SNIPPET = re.compile(r"^```(\w+)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
JOBS = sorted((ROOT / "examples" / "flows").glob("*.yaml"))
"""Real jobs written in the language, ahead of what runs. Their data is not shipped."""


def snippets(language: str) -> Iterator[tuple[str, str]]:
    """(name, text) of each fenced block of `language` in the pages; the name says page and number."""
    for page in PAGES:
        blocks = [text for kind, text in SNIPPET.findall(page.read_text(encoding="utf-8")) if kind == language]
        yield from ((f"{page.relative_to(ROOT)}-{number}", text) for number, text in enumerate(blocks, start=1))


WHOLE_FLOWS = [pytest.param(text, id=name) for name, text in snippets("yaml") if re.search("^flowrl:", text, re.M)]
PROGRAMS = [pytest.param(text, id=name) for name, text in snippets("python") if text.startswith("from flowrl")]


def errors_of(file: Path) -> list[str]:
    """Codes and notes of the errors that `check` finds."""
    return [f"{d.code} {d.headline} {d.notes}" for d in api.check(file).diagnostics if d.severity == Severity.ERROR]


def beside(folder: Path) -> None:
    """Put the files that shown flows name into `folder`: the functions that pages show, and a data set."""
    functions = [source for _, source in snippets("python") if source.startswith("def ")]
    (folder / "rewards.py").write_text("\n".join(functions))
    (folder / "gsm8k.jsonl").write_text('{"question": "1 + 1", "answer": "2"}\n')


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_example_passes_check(file: Path) -> None:
    assert not errors_of(file)


@pytest.mark.parametrize("file", JOBS, ids=lambda file: file.name)
def test_job_passes_check(file: Path) -> None:
    assert not errors_of(file)


@pytest.mark.parametrize("text", WHOLE_FLOWS)
def test_shown_flow_passes_check(text: str, tmp_path: Path) -> None:
    beside(tmp_path)
    (tmp_path / "flow.yaml").write_text(text)
    assert not errors_of(tmp_path / "flow.yaml")


@pytest.mark.parametrize("text", PROGRAMS)
def test_shown_program_runs(text: str, tmp_path: Path) -> None:
    """Whole programs on a page plan and save; none of them trains."""
    beside(tmp_path)
    (tmp_path / "program.py").write_text(text)
    command = [sys.executable, "program.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", pages.PAGES)
def test_page_is_as_the_code(name: str) -> None:
    assert pages.is_current(ROOT / name, pages.PAGES[name]()), "run `python tools/pages.py`"
