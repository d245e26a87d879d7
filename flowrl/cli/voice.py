"""How the command line talks: data to stdout, diagnostics to stderr, as text, JSON or SARIF; colour on a terminal only.

Takes diagnostics and exceptions, gives printed lines and exit codes. Must not know what the commands do.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import click

from flowrl import __version__
from flowrl.diag.diagnostic import Diagnostic, FlowError, Help, Severity, diagnose

USAGE = 2
INTERRUPTED = 130
PLAIN_WIDTH = 100
"""Columns where no terminal says how many it has."""
YAML = (".yaml", ".yml")
MOST_FRAMED = 10 * 2**20
"""Characters of a file that frames are cut from; nothing longer is read, so no place lies behind them."""
PRESET = "preset:"
"""How spans name a preset's file."""
WIDEST = 120
NARROWEST = 60


@dataclass(frozen=True, slots=True)
class Voice:
    """What one call of a command was told about its output. `texts` are sources that no file holds, such as flags."""

    format: str = "text"
    width: int = PLAIN_WIDTH
    texts: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def json(self) -> bool:
        return self.format == "json"

    @property
    def sarif(self) -> bool:
        """Whether the diagnostics are the data, in the form that editors and code hosts read."""
        return self.format == "sarif"

    def read_source(self, file: str) -> str | None:
        """Text of what a span names (a file, a flag, a preset), for frames; None if it cannot be read."""
        if file in self.texts:
            return self.texts[file]
        if file.startswith(PRESET):
            from flowrl.spec.presets import preset_names, preset_text

            name = file.removeprefix(PRESET)
            return preset_text(name) if name in preset_names() else None
        try:
            with Path(file).open(encoding="utf-8-sig") as text:
                return text.read(MOST_FRAMED)
        except (OSError, UnicodeDecodeError):
            return None

    def data(self, text: str) -> None:
        """Print what the command was called for."""
        click.echo(text, nl=not text.endswith("\n"))

    def note(self, text: str) -> None:
        """Print a line about the work, beside the data."""
        click.echo(text, err=True)

    def diagnostics(self, diagnostics: Sequence[Diagnostic], stream: TextIO | None = None) -> None:
        """Print diagnostics to stderr, or to `stream` where they are the data."""
        from flowrl.diag.render import render_json, render_text
        from flowrl.diag.sarif import render_sarif

        if not diagnostics and self.format == "text":
            return
        out = stream or (sys.stdout if self.sarif else sys.stderr)
        if self.sarif:
            text = render_sarif(diagnostics, self.read_source, __version__)
        elif self.json:
            text = render_json(diagnostics)
        else:
            text = render_text(diagnostics, self.read_source, has_color(out), self.width, is_ascii(out))
        click.echo(text, file=out, nl=not text.endswith("\n"), color=True)

    def internal(self, error: BaseException) -> int:
        """Print the frame of a fault of ours and put its traceback into a file. Returns the exit code."""
        detail = f"{type(error).__name__}: {error}"
        report = Help(text=f"report it with the traceback in {keep_traceback(error)}")
        diagnostic = diagnose("FR9901", detail=detail, helps=[report])
        self.diagnostics([diagnostic])
        return diagnostic.exit_code


def has_color(stream: TextIO) -> bool:
    """Whether to colour what goes to `stream`: a terminal, and no NO_COLOR (no-color.org: any value but empty)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def natural_width(stream: TextIO) -> int:
    """Columns of the terminal behind `stream`, within reason; 100 where there is none."""
    if not stream.isatty():
        return PLAIN_WIDTH
    return max(NARROWEST, min(WIDEST, shutil.get_terminal_size((PLAIN_WIDTH, 24)).columns))


def is_ascii(stream: TextIO) -> bool:
    """Whether `stream` cannot show the characters that plans are drawn with."""
    try:
        "→▶█·".encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return True
    return False


def keep_traceback(error: BaseException) -> str:
    """Write the traceback of `error` to a new file of the temporary folder; its path, or why there is none."""
    lines = traceback.format_exception(error)
    try:
        handle, name = tempfile.mkstemp(prefix="flowrl-traceback-", suffix=".txt")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.writelines(lines)
    except OSError as problem:
        return f"no file ({problem})"
    return name


def write(file: Path, data: bytes) -> None:
    """Raises FlowError FR0026."""
    try:
        file.write_bytes(data)
    except OSError as error:
        problem = (error.strerror or str(error)).lower()
        raise FlowError(diagnose("FR0026", file=file, problem=problem)) from None


def worst(diagnostics: Sequence[Diagnostic]) -> int:
    """Exit code of a command that ends with `diagnostics`; warnings alone are 0."""
    from flowrl.diag.render import exit_code

    return exit_code(diagnostics)


def count_line(diagnostics: Sequence[Diagnostic]) -> str:
    """`no errors`, or `2 errors, 1 warning`, with how many of them have a certain fix."""
    errors = sum(d.severity == Severity.ERROR for d in diagnostics)
    warnings = sum(d.severity == Severity.WARNING for d in diagnostics)
    parts = [f"{n} {word}{'' if n == 1 else 's'}" for n, word in ((errors, "error"), (warnings, "warning")) if n]
    certain = sum(any(h.certain and h.span and h.span.file.endswith(YAML) for h in d.helps) for d in diagnostics)
    mended = [f"`check --fix` mends {certain}"] if certain else []
    return "; ".join([", ".join(parts) or "no errors", *mended])


def as_json(value: object) -> str:
    """Indented JSON with the characters as they are."""
    return json.dumps(value, indent=2, ensure_ascii=False)
