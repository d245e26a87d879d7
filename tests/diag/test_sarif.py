"""SARIF: valid by the schema of OASIS, and the same places, levels and edits as the frames."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from flowrl.diag.catalogue import CODES
from flowrl.diag.diagnostic import Diagnostic, Help, Label, Severity, diagnose
from flowrl.diag.sarif import render_sarif, uri
from flowrl.diag.span import Span
from tests.errors.cases import CASES, diagnostics_of, read_source, sets_of

SCHEMA = json.loads(Path(__file__).with_name("sarif-schema-2.1.0.json").read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft7Validator(SCHEMA, format_checker=jsonschema.Draft7Validator.FORMAT_CHECKER)
TEXT = "a: 1\r\nnäme: x  # kept\r\n"
PLACE = Span("dir/a flow.yaml", 2, 1, 2, 5)


def run_of(found: list[Diagnostic], text: str | None = TEXT) -> dict[str, Any]:
    log = json.loads(render_sarif(found, lambda _: text, "1.2.3"))
    VALIDATOR.validate(log)
    (run,) = log["runs"]
    return run


def misspelt() -> Diagnostic:
    help_ = Help(text="a key with a near name exists", span=PLACE, replacement="name: x  # kept", certain=True)
    also = [Label(Span("preset:grpo", 3, 1, 3, 4), "from this preset"), Label(Span("--set", 1, 1, 1, 4), "and here")]
    return diagnose("FR0103", PLACE, also=also, helps=[help_], parent="`roles`")


def test_places_and_edit_of_a_result() -> None:
    (result,) = run_of([misspelt()])["results"]
    place = {"startLine": 2, "startColumn": 1, "endLine": 2, "endColumn": 5}
    assert result["locations"][0]["physicalLocation"] == {
        "artifactLocation": {"uri": "dir/a%20flow.yaml"},
        "region": place,
    }
    assert result["locations"][0]["message"]["text"] == "not a key of `roles`"
    related = [r["physicalLocation"]["artifactLocation"]["uri"] for r in result["relatedLocations"]]
    assert related == ["preset:grpo", "flag:set"]
    (change,) = result["fixes"][0]["artifactChanges"]
    assert change["replacements"] == [{"deletedRegion": place, "insertedContent": {"text": "name"}}]


def test_every_result_names_its_rule_and_every_rule_its_page() -> None:
    found = [misspelt(), diagnose("FR0604", PLACE, **facts_of("FR0604")), misspelt()]
    run = run_of(found)
    rules = run["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == ["FR0103", "FR0604"]
    assert [result["ruleId"] for result in run["results"]] == [rules[r["ruleIndex"]]["id"] for r in run["results"]]
    assert {result["ruleId"]: result["level"] for result in run["results"]} == {"FR0103": "error", "FR0604": "warning"}
    root = Path(__file__).parents[2]
    for rule in rules:
        assert rule["help"]["markdown"] == (root / rule["properties"]["page"]).read_text(encoding="utf-8")


def facts_of(code: str) -> dict[str, str]:
    """Any fact that the words of a code ask for."""
    entry = CODES[code]
    words = " ".join(part for part in (entry.label, entry.why, entry.help) if part)
    return dict.fromkeys(re.findall(r"\{(\w+)", words), "x")


def test_no_faults_are_a_run_without_results() -> None:
    assert run_of([])["results"] == []


def test_more_than_frames_show() -> None:
    many = [
        Diagnostic(code="FR0103", severity=Severity.ERROR, headline="x", labels=(Label(Span("f", n, 1, n, 2), ""),))
        for n in range(1, 40)
    ]
    assert len(run_of(many, None)["results"]) == 39


@pytest.mark.parametrize(
    ("file", "wanted"),
    [
        ("a.yaml", "a.yaml"),
        ("/tmp/a b.yaml", "file:///tmp/a%20b.yaml"),
        ("preset:ppo", "preset:ppo"),
        ("--cluster", "flag:cluster"),
    ],
)
def test_uris(file: str, wanted: str) -> None:
    assert uri(file) == wanted


@pytest.mark.parametrize("case", CASES[::9], ids=lambda case: case.name)
def test_cases_of_the_catalogue_are_valid(case: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / case.name
    shutil.copytree(case, folder)
    monkeypatch.chdir(folder)
    found = diagnostics_of(folder)
    log = json.loads(render_sarif(found, lambda file: read_source(file, sets_of(folder)), "1"))
    VALIDATOR.validate(log)
    assert len(log["runs"][0]["results"]) == len(set(map(repr, found)))
