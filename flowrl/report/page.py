"""The page that text views are written on: width, wrapping, colour, and characters for terminals without Unicode.

Lines are built plain, in Unicode; colour and ASCII come last, so that neither moves a column.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

INDENT = 9
"""Columns before the content of a section: ` WHERE   `."""

_ASCII = str.maketrans(
    {
        "▶": ">",
        "█": "#",
        "▌": ":",
        "▒": "~",
        "░": ".",
        "─": "-",
        "│": "|",
        "┬": "+",
        "┴": "+",
        "┼": "+",
        "├": "+",
        "┤": "+",
        "┌": "+",
        "┐": "+",
        "└": "+",
        "┘": "+",
        "▏": "|",
        "▕": "|",
        "◀": "<",
        "·": ";",
        "×": "x",
        "≈": "~",
        "…": "~",
        "–": "-",
        "−": "-",
        "→": ">",
        "±": "!",
        "⇄": "=",
        "↺": "@",
        "▁": "_",
        "▂": ".",
        "▃": "-",
        "▄": "=",
        "▅": "+",
        "▆": "*",
        "▇": "%",
    }
)
_BOLD, _RED, _YELLOW, _DIM, _OFF = "\x1b[1m", "\x1b[31m", "\x1b[33m", "\x1b[2m", "\x1b[0m"
_TITLE = re.compile(r"^( )([A-Z]{3,7})(?= )")


def section(title: str, content: Sequence[str]) -> list[str]:
    """Content lines behind a title, and an empty line before them. A section without content is left out."""
    if not content:
        return []
    first, *rest = content
    return ["", f" {title:<{INDENT - 1}}{first}".rstrip(), *((" " * INDENT + line).rstrip() for line in rest)]


def joined(parts: Iterable[str], width: int, indent: str = "", separator: str = " · ", first: str = "") -> list[str]:
    """Parts in lines of at most `width` columns, broken only between parts; the first line starts with `first`, the
    others with `indent`."""
    lines: list[str] = []
    start, current = first, ""
    for part in parts:
        longer = f"{current}{separator}{part}" if current else part
        if current and len(start) + len(longer) > width:
            lines.append(start + current)
            start, current = indent, part
        else:
            current = longer
    lines.append(start + current)
    return [shorten(line, width) for line in lines]


def wrapped(text: str, width: int, indent: str = "", first: str = "") -> list[str]:
    """A sentence in lines of at most `width` columns; the first starts with `first`, the others with `indent`."""
    return joined(text.split(), width, indent, " ", first)


def kept(text: str, width: int, indent: str = "", first: str = "") -> list[str]:
    """A line that is already laid out, as it is where it fits, else wrapped like a sentence."""
    return [first + text] if len(first) + len(text) <= width else wrapped(text, width, indent, first)


def shorten(text: str, width: int) -> str:
    """Text of at most `width` columns; what is cut off is marked, and a number is left out rather than cut."""
    if len(text) <= width:
        return text
    start, following = text[: max(width - 1, 0)], text[max(width - 1, 0)]
    return (start.rstrip(_OF_NUMBERS) if following in _OF_NUMBERS else start) + "…"


_OF_NUMBERS = "0123456789.,"


def bar(share: float, width: int) -> str:
    """A bar of `width` columns, full to `share`; anything above 0 shows at least one block."""
    full = round(min(max(share, 0.0), 1.0) * width)
    if share > 0 and full == 0:
        full = 1
    return "█" * full + "░" * (width - full)


def finish(lines: Sequence[str], width: int, color: bool, ascii: bool) -> str:
    """The page as text that ends in a newline."""
    page = [shorten(line.rstrip(), width) for line in lines]
    if ascii:
        page = [line.translate(_ASCII).encode("ascii", "replace").decode() for line in page]
    if color:
        page = [_colored(line, place == 0) for place, line in enumerate(page)]
    return "\n".join(page) + "\n"


def _colored(line: str, is_first: bool) -> str:
    if "DOES NOT FIT" in line or " over the limit" in line:
        return f"{_RED}{line}{_OFF}"
    if line.startswith(" warnings"):
        return f"{_YELLOW}{line}{_OFF}"
    if line.startswith(" next"):
        return f"{_DIM}{line}{_OFF}"
    if is_first:
        return f"{_BOLD}{line}{_OFF}"
    return _TITLE.sub(rf"\1{_BOLD}\2{_OFF}", line)
