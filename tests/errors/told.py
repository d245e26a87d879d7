"""Frames of diagnostics that a test provokes: rendered as the CLI does, without what machines and runs differ in.

Such a golden is tests/errors/FRnnnn[-what]/expected.txt and nothing else: what provokes it is in the test that calls
`told` (tests/conftest.py), not in a flow beside it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from flowrl.diag.diagnostic import Diagnostic, FlowError
from flowrl.diag.render import render_text
from tests.errors.cases import read_source
from tests.house.tree import ROOT

Found = FlowError | Diagnostic | Iterable[Diagnostic]

_DIFFERS = (
    (re.compile(r"\S*/(?:site|dist)-packages/(\S+?\.py)(:\d+)?"), lambda m: m[1] + (":LINE" if m[2] else "")),
    (re.compile(r"\b(vLLM|vllm|torch|Ray|ray|transformers) v?\d+(?:\.\d+)+[\w.+-]*"), r"\1 VERSION"),
    (re.compile(r"\b0x[0-9a-f]{6,}\b"), "ADDRESS"),
    (re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}(:\d+)?\b"), lambda m: "HOST:PORT" if m[1] else "HOST"),
    (re.compile(r"(raised in \S+, \S+\.py):\d+"), r"\1:LINE"),
    (re.compile(r"(completed for) [\d,]+ s\b"), r"\1 N s"),
    (re.compile(r"\bflowrl-(weights|traceback)-\w+(?:-[0-9a-f]+)?"), r"flowrl-\1-ID"),
    (re.compile(r"\b\d{8}-\d{6}\b"), "DATE-TIME"),
    (re.compile(r"\b(process|pid|kill -\w+)([ =])\d+"), r"\1\2PID"),
)


def diagnostics_of(found: Found) -> list[Diagnostic]:
    if isinstance(found, FlowError):
        return list(found.diagnostics)
    return [found] if isinstance(found, Diagnostic) else list(found)


def scrubbed(text: str, folder: Path) -> str:
    """`text` with a word for each path, process, address and version of this machine.

    TMP is `folder`, and each folder that pytest has made beside it.
    """
    text = re.sub(rf"{re.escape(str(folder.parent))}/[\w.-]+", "TMP", text).replace(str(ROOT), "ROOT")
    for pattern, word in _DIFFERS:
        text = pattern.sub(word, text)
    return text


def frames(found: Found, folder: Path, texts: Mapping[str, str]) -> str:
    """What the CLI prints of `found` at 100 columns; `texts` are sources that no file holds.

    Names are replaced before the frame is made: how its lines are wrapped then hangs on no machine's paths.
    """
    plain: Any = msgspec.to_builtins(diagnostics_of(found))
    scrub = _each_text(plain, folder)

    def read(file: str) -> str | None:
        if file in texts:
            return texts[file]
        path = file.replace("TMP", str(folder), 1) if file.startswith("TMP") else file
        text = read_source(path, []) or read_source(str(folder / path), [])
        return None if text is None else scrubbed(text, folder)

    return render_text(msgspec.convert(scrub, list[Diagnostic]), read)


def _each_text(value: Any, folder: Path) -> Any:
    if isinstance(value, str):
        return scrubbed(value, folder)
    if isinstance(value, dict):
        return {key: _each_text(each, folder) for key, each in value.items()}
    return [_each_text(each, folder) for each in value] if isinstance(value, list | tuple) else value
