"""`check --fix`: makes the edits that are certain, in the flow's own file and in files of its folder that it includes.

A round checks the flow, makes all certain edits that do not touch each other, and writes each changed file in one
move; rounds end when no certain edit is left.
"""

from __future__ import annotations

import difflib
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flowrl.diag.diagnostic import Diagnostic, FlowError, diagnose
from flowrl.diag.edits import apply, certain_edits

MOST_ROUNDS = 10
"""A fix can bring another fault into sight, as often as there are stages of checking; it never comes near this."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """A file that was changed: what it held at first and holds now, and the number of edits."""

    file: str
    before: str
    after: str
    edits: int

    def diff(self) -> str:
        """Unified diff, as `diff -u` and `git diff` write it."""
        before, after = self.before.splitlines(keepends=True), self.after.splitlines(keepends=True)
        lines = difflib.unified_diff(before, after, f"a/{self.file}", f"b/{self.file}", n=1)
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def fix_once(diagnostics: Sequence[Diagnostic], folder: Path) -> list[Fixed]:
    """Make the certain edits of `diagnostics` in files that lie in `folder` or below it. Raises FlowError FR0026."""
    files = {label.span.file for d in diagnostics for label in d.labels}
    files |= {help_.span.file for d in diagnostics for help_ in d.helps if help_.span is not None}
    changed: list[Fixed] = []
    for file in sorted(files):
        source = _source(file, folder)
        edits = certain_edits(diagnostics, file, source) if source is not None else []
        if source is not None and edits:
            after = apply(edits, source)
            _write(Path(file), after)
            changed.append(Fixed(file, source, after, len(edits)))
    return changed


def joined(first: Sequence[Fixed], then: Sequence[Fixed]) -> list[Fixed]:
    """Two rounds told as one: a file that both changed, from its first to its last text."""
    found = {fixed.file: fixed for fixed in first}
    for fixed in then:
        earlier = found.get(fixed.file)
        found[fixed.file] = (
            fixed if earlier is None else Fixed(fixed.file, earlier.before, fixed.after, earlier.edits + fixed.edits)
        )
    return [found[file] for file in sorted(found)]


def _source(file: str, folder: Path) -> str | None:
    """The text of a YAML file of the folder; None for all else: presets, flags, Python, what lies elsewhere."""
    path = Path(file)
    if path.suffix not in (".yaml", ".yml") or not path.is_file():
        return None
    if not path.resolve().is_relative_to(folder.resolve()):
        return None
    try:
        # Not read as text: that would turn \r\n into \n.
        return path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def _write(path: Path, text: str) -> None:
    """Write a file in one move, so that nobody ever reads half of it; its mode stays, a link stays a link."""
    target = path.resolve()
    handle, name = -1, ""
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        with os.fdopen(handle, "wb") as file:
            file.write(text.encode("utf-8"))
        shutil.copymode(target, name)
        os.replace(name, target)
    except OSError as error:
        if name:
            Path(name).unlink(missing_ok=True)
        problem = (error.strerror or str(error)).lower()
        raise FlowError(diagnose("FR0026", file=path, problem=problem)) from None
