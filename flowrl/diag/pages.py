"""The page of each code: docs/errors/CODE.md in the repository, shipped in a wheel as flowrl/diag/errors/CODE.md."""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).resolve().parent
_FOLDERS = (_HERE / "errors", _HERE.parents[1] / "docs" / "errors")


def page(code: str) -> str | None:
    """The text of the page of `code`; None if there is no such page."""
    for folder in _FOLDERS:
        file = folder / f"{code}.md"
        if file.is_file():
            return file.read_text(encoding="utf-8")
    return None
