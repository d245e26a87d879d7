"""Every code has a page and a case, and nothing else has."""

from __future__ import annotations

import pytest

from flowrl.diag.catalogue import CODES
from flowrl.diag.pages import page
from tests.errors.cases import HERE as CASES
from tests.errors.cases import MADE_OF
from tests.house.tree import ROOT

PAGES = ROOT / "docs" / "errors"
PAGE_LINES = 30


@pytest.mark.parametrize("code", sorted(CODES))
def test_code_has_a_page(code: str) -> None:
    text = page(code)
    assert text is not None, f"docs/errors/{code}.md is missing"
    assert text.startswith(f"# {code}: {CODES[code].headline}\n")
    assert len(text.splitlines()) <= PAGE_LINES


def test_pages_are_of_codes() -> None:
    assert {file.stem for file in PAGES.glob("FR*.md")} <= set(CODES)


TESTS = "\n".join(file.read_text() for file in (ROOT / "tests").rglob("test_*.py") if "house" not in file.parts)


@pytest.mark.parametrize("code", sorted(CODES))
def test_code_has_a_case(code: str) -> None:
    """A whole frame in tests/errors, made of the case's own files or, where there are none, by a test that names the
    code (tests/errors/told.py)."""
    frames = list(CASES.glob(f"{code}*/expected.txt"))
    assert any(frame.read_text(encoding="utf-8").find(f"[{code}]: {CODES[code].headline}\n") > 0 for frame in frames)
    made = all(any((frame.parent / name).exists() for name in MADE_OF) for frame in frames)
    assert made or code in TESTS, f"tests/errors/{code} is a frame that no test makes"


@pytest.mark.parametrize("code", sorted(CODES))
def test_words_of_a_code(code: str) -> None:
    """STYLE: no exclamation, no question, no `please`, `invalid` never alone; a warning has help."""
    entry = CODES[code]
    words = " ".join(part for part in (entry.headline, entry.label, entry.why, entry.help) if part)
    assert not any(mark in words for mark in ("!", "?", "please", "Please"))
    assert entry.headline != "invalid"
    assert "{" not in entry.headline, "a headline is constant"
    assert entry.exit_code in (1, 4, 5, 70)
