"""Diagnostics → SARIF 2.1.0 (OASIS), which editors and code hosts show beside the source.

Takes values and a way to read source, gives one JSON text in the order of the frames, without a cap. A rule carries the
page of its code; a result its labels, with the help lines in its message, and each help with a corrected line as a fix.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import PurePath, PurePosixPath
from typing import Any
from urllib.parse import quote

from flowrl.diag.catalogue import CODES
from flowrl.diag.diagnostic import Diagnostic, Help, Label
from flowrl.diag.edits import edit_of, region
from flowrl.diag.pages import page
from flowrl.diag.render import ReadSource, sort_diagnostics
from flowrl.diag.span import Span

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/os/schemas/sarif-schema-2.1.0.json"
PAGES = "docs/errors"
Json = dict[str, Any]


def render_sarif(diagnostics: Iterable[Diagnostic], read_source: ReadSource, version: str) -> str:
    """One run of the tool `flowrl`. Places that are no file (`--set`, a preset) have a scheme of their own."""
    ordered = sort_diagnostics(diagnostics)
    codes = sorted({diagnostic.code for diagnostic in ordered})
    driver = {"name": "flowrl", "version": version, "rules": [_rule(code) for code in codes]}
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [_result(diagnostic, codes.index(diagnostic.code), read_source) for diagnostic in ordered],
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2, ensure_ascii=False)


def _rule(code: str) -> Json:
    """The page is given as text and by its path in the repository: an absolute address, which `helpUri` asks for, would
    be another one for every version."""
    text = page(code)
    explained = {"text": f"flowrl explain {code}"} | ({"markdown": text} if text is not None else {})
    return {
        "id": code,
        "shortDescription": {"text": CODES[code].headline},
        "help": explained,
        "defaultConfiguration": {"level": CODES[code].severity},
        "properties": {"page": str(PurePosixPath(PAGES, f"{code}.md"))},
    }


def _result(diagnostic: Diagnostic, rule: int, read_source: ReadSource) -> Json:
    result: Json = {
        "ruleId": diagnostic.code,
        "ruleIndex": rule,
        "level": str(diagnostic.severity),
        "message": {"text": _message(diagnostic)},
        "locations": [_location(label) for label in diagnostic.labels[:1]],
    }
    if diagnostic.labels[1:]:
        result["relatedLocations"] = [_location(label, id=n) for n, label in enumerate(diagnostic.labels[1:], start=1)]
    fixes = [fix for help_ in diagnostic.helps if (fix := _fix(help_, read_source)) is not None]
    return result | ({"fixes": fixes} if fixes else {})


def _message(diagnostic: Diagnostic) -> str:
    """Headline and primary label, then why, notes and helps, a paragraph each."""
    label = diagnostic.labels[0].text if diagnostic.labels else ""
    first = f"{diagnostic.headline}: {label}" if label else diagnostic.headline
    helps = [f"help: {help_.text}" for help_ in diagnostic.helps]
    return "\n".join([first, *([diagnostic.why] if diagnostic.why else []), *diagnostic.notes, *helps])


def _location(label: Label, id: int | None = None) -> Json:
    found: Json = {
        "physicalLocation": {"artifactLocation": {"uri": uri(label.span.file)}, "region": _region(label.span)},
        "message": {"text": label.text},
    }
    return found if id is None else {"id": id, **found}


def _region(span: Span) -> Json:
    return {
        "startLine": span.line,
        "startColumn": span.column,
        "endLine": span.end_line,
        "endColumn": span.end_column,
    }


def _fix(help_: Help, read_source: ReadSource) -> Json | None:
    source = read_source(help_.span.file) if help_.span is not None else None
    edit = edit_of(help_, source) if source is not None else None
    if edit is None or help_.span is None:
        return None
    replaced = {"deletedRegion": _region(region(edit, help_.span.file)), "insertedContent": {"text": edit.text}}
    change = {"artifactLocation": {"uri": uri(help_.span.file)}, "replacements": [replaced]}
    return {"description": {"text": help_.text}, "artifactChanges": [change]}


def uri(file: str) -> str:
    """A span's file as a URI reference: relative as the user gave it, `file:` if absolute, else a scheme of its own."""
    if file.startswith("--"):
        return f"flag:{quote(file.lstrip('-'))}"
    scheme, colon, rest = file.partition(":")
    if colon and scheme == "preset":
        return f"preset:{quote(rest)}"
    path = PurePath(file).as_posix()
    return quote(path) if not path.startswith("/") else f"file://{quote(path)}"
