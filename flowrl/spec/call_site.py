"""Where user code called the builder: spans of the call and of each of its arguments."""

from __future__ import annotations

import ast
import linecache
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from flowrl.diag.span import Span

_HERE = str(Path(__file__).resolve().parents[1])


@dataclass(frozen=True, slots=True)
class CallSite:
    """One call. Arguments without a place of their own (`**options`) have that of the call."""

    span: Span
    file: str
    keys: dict[str, Span] = field(default_factory=dict[str, Span])
    """Where the name of a keyword argument stands."""
    values: dict[str | int, Span] = field(default_factory=dict[str | int, Span])
    """By keyword, or by position for the others."""

    def key(self, name: str) -> Span:
        return self.keys.get(name, self.span)

    def value(self, name: str | int) -> Span:
        return self.values.get(name, self.span)


def call_site() -> CallSite:
    """The innermost call from outside this package."""
    frame = _outside()
    file = _shown(frame.f_code.co_filename)
    linecache.checkcache(file)
    start, end, column, end_column = _position(frame)
    span = Span(file, start, _characters(file, start, column) + 1, end, _characters(file, end, end_column) + 1)
    return _with_arguments(CallSite(span, file), column)


def _shown(file: str) -> str:
    """Relative to the working directory where it lies below it, as a path on the command line would be."""
    try:
        relative = os.path.relpath(file)
    except ValueError:
        return file
    return file if relative.startswith("..") or file.startswith("<") else relative


def source_text(file: str) -> str:
    return "".join(linecache.getlines(file))


def _outside() -> FrameType:
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return frame


def _position(frame: FrameType) -> tuple[int, int, int, int]:
    """Lines and UTF-8 columns of the expression that is being evaluated in `frame`."""
    positions = list(frame.f_code.co_positions())
    start, end, column, end_column = positions[frame.f_lasti // 2]
    line = start or frame.f_lineno
    return line, end or line, column or 0, end_column or 0


def _characters(file: str, line: int, column: int) -> int:
    """A UTF-8 offset in a line as a number of characters."""
    encoded = linecache.getline(file, line).encode("utf-8", "surrogateescape")
    return len(encoded[:column].decode("utf-8", "ignore"))


def _with_arguments(site: CallSite, column: int) -> CallSite:
    lines = [linecache.getline(site.file, line) for line in range(site.span.line, site.span.end_line + 1)]
    if not all(lines):
        return site
    last = site.span.end_column - 1
    first = site.span.column - 1
    lines[-1] = lines[-1][:last]
    lines[0] = " " * first + lines[0][first:]
    try:
        # In brackets the indentation of the first line does not count.
        tree = ast.parse("(\n" + "".join(lines) + "\n)", mode="eval").body
    except SyntaxError:
        return site
    if not isinstance(tree, ast.Call):
        return site

    def place(node: ast.expr | ast.keyword, stop: int | None = None) -> Span:
        start_line, stop_line = site.span.line + node.lineno - 2, site.span.line + (node.end_lineno or node.lineno) - 2
        start = _characters(site.file, start_line, node.col_offset)
        end = start + stop if stop is not None else _characters(site.file, stop_line, node.end_col_offset or 0)
        return Span(site.file, start_line, start + 1, start_line if stop is not None else stop_line, end + 1)

    for position, argument in enumerate(tree.args):
        site.values[position] = place(argument)
    for keyword in tree.keywords:
        if keyword.arg is not None:
            site.keys[keyword.arg] = place(keyword, len(keyword.arg))
            site.values[keyword.arg] = place(keyword.value)
    return site
