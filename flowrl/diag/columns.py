"""How wide text is in a terminal, and what of it is safe to print. Knows nothing of diagnostics."""

from __future__ import annotations

import unicodedata

TAB = 4


def char_width(char: str) -> int:
    """Columns that a character takes: 0 for combining marks, 2 for wide ones, `TAB` for a tab."""
    if char == "\t":
        return TAB
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def pad_before(text: str, index: int) -> int:
    """Columns before character `index` of `text`; beyond its end each character counts 1."""
    return sum(char_width(char) for char in text[: max(index, 0)]) + max(index - len(text), 0)


def clean(text: str, keep_lines: bool = False) -> str:
    """`text` as it may be printed: tabs become spaces, control characters a replacement character."""
    kept = "\n" if keep_lines else ""
    spaced = text.replace("\t", " " * TAB)
    return "".join(char if char in kept or _is_printable(char) else "\N{REPLACEMENT CHARACTER}" for char in spaced)


def _is_printable(char: str) -> bool:
    return char not in "\u2028\u2029" and unicodedata.category(char) not in ("Cc", "Cf", "Cs")


def window(text: str, column: int, width: int) -> tuple[int, str]:
    """The part of a very long line around `column`: how many characters were left out before it, and the part."""
    if len(text) <= width:
        return 0, text
    start = max(0, column - 1 - width // 2)
    return start, text[start : start + width]
