"""A place in something the user wrote: a file, a preset, a command-line flag or a Python call site."""

from __future__ import annotations

import msgspec


class Span(msgspec.Struct, frozen=True, order=True, gc=False):
    """A half-open range of text. Lines and columns count from 1, columns in characters.

    `file` is the path as the user gave it, `preset:NAME`, `--set`, `--cluster`, or a Python file.
    """

    file: str
    line: int
    column: int
    end_line: int
    end_column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"
