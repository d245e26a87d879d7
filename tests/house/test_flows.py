"""Every flow that is shipped or shown passes `check`, and the pages made from the code are as the code is now."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowrl import api
from flowrl.diag.diagnostic import Severity
from tests.house.tree import PACKAGE, ROOT
from tools import pages

SNIPPET = re.compile(r"^```(\w+)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FLOWS = sorted([*(ROOT / "examples").rglob("*.yaml"), *(PACKAGE / "presets").rglob("*.yaml")])


def snippets(language: str) -> Iterator[tuple[str, str]]:
    """(name, text) of each fenced block of `language` in the pages; the name says page and number."""
    for page in PAGES:
        blocks = [text for kind, text in SNIPPET.findall(page.read_text(encoding="utf-8")) if kind == language]
        yield from ((f"{page.relative_to(ROOT)}-{number}", text) for number, text in enumerate(blocks, start=1))


WHOLE_FLOWS = [pytest.param(text, id=name) for name, text in snippets("yaml") if re.search("^flowrl:", text, re.M)]
PYTHON = [pytest.param(text, id=name) for name, text in snippets("python")]


def errors_of(file: Path) -> list[str]:
    return [f"{d.code} {d.headline} {d.notes}" for d in api.check(file).diagnostics if d.severity == Severity.ERROR]


@pytest.mark.parametrize("file", FLOWS, ids=lambda file: file.name)
def test_shipped_flow_passes_check(file: Path) -> None:
    assert not errors_of(file)


@pytest.mark.parametrize("text", WHOLE_FLOWS)
def test_shown_flow_passes_check(text: str, tmp_path: Path) -> None:
    """A flow on a page may name `rewards.py`: the functions that pages show."""
    functions = [source for _, source in snippets("python") if source.startswith("def ")]
    (tmp_path / "rewards.py").write_text("\n".join(functions))
    (tmp_path / "gsm8k.jsonl").write_text('{"question": "1 + 1", "answer": "2"}\n')
    (tmp_path / "flow.yaml").write_text(text)
    assert not errors_of(tmp_path / "flow.yaml")


@pytest.mark.parametrize("text", PYTHON)
def test_shown_python_uses_names_that_exist(text: str) -> None:
    tree = ast.parse(text)
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "api"
    }
    assert used <= set(dir(api))


@pytest.mark.parametrize("name", pages.PAGES)
def test_page_is_as_the_code(name: str) -> None:
    assert pages.is_current(ROOT / name, pages.PAGES[name]()), "run `python tools/pages.py`"
