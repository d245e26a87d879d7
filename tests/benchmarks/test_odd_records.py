"""Folders of facts that hold odd things: nothing raises, and what cannot be modelled is listed with a reason."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import accuracy
from benchmarks.facts import times
from benchmarks.facts.section import Facts

RECORDS = Facts().perf
STEP = next(raw for raw in RECORDS if raw["kind"] == "e2e_step" and times.is_core(times.read(raw)))


def odd_steps() -> Iterator[dict[str, Any]]:
    """Of one good record, what a hand or a scraper may have made; each must be left out."""
    yield {**dict.fromkeys(STEP), "id": "nulls", "kind": "e2e_step"}
    yield {**STEP, "id": "words", "num_gpus": "sixteen", "measured": {"step_time_s": "fast"}}
    yield {**STEP, "id": "no devices", "num_gpus": 0}
    yield {**STEP, "id": "negative", "num_gpus": -16, "measured": {"step_time_s": -3}}
    yield {**STEP, "id": "no time", "measured": {"step_time_s": 0}}
    yield {**STEP, "id": "not a number", "measured": {"step_time_s": float("nan")}}
    yield {**STEP, "id": "endless", "measured": {"step_time_s": float("inf")}}
    yield {**STEP, "id": "lists", "models": ["a"], "parallelism": [1], "measured": [1], "notes": {"a": 1}}
    yield {**STEP, "id": "huge", "num_gpus": 10**9, "response_len": {"max": 10**12, "mean": 10**11}}
    yield {**STEP, "id": "nested", "gpu": {"n": 1}, "models": {"actor": None}}


def written(folder: Path, **files: list[Any]) -> Facts:
    for name, records in files.items():
        (folder / f"{name}.json").write_text(json.dumps(records), encoding="utf-8")
    return Facts(folder)


def test_odd_steps_are_left_out_with_a_reason(tmp_path: Path) -> None:
    odd = list(odd_steps())
    found = times.rows(written(tmp_path, perf_published=[*odd, STEP]), fitted=False)
    assert [row["id"] for row in found.rows] == [STEP["id"]]
    assert [each["id"] for each in found.excluded] == [raw["id"] for raw in odd]
    assert all(each["reason"] for each in found.excluded)


def test_a_record_counts_once(tmp_path: Path) -> None:
    found = times.rows(written(tmp_path, perf_published=[STEP, STEP]), fitted=False)
    assert len(found.rows) == 1
    assert found.excluded == [{"id": STEP["id"], "reason": "the same record stands before it"}]


def test_a_folder_with_nothing_in_it(tmp_path: Path) -> None:
    for section in accuracy.sections(Facts(tmp_path), list(accuracy.SECTIONS), fitted=True):
        assert (section.rows, section.excluded) == ([], [])


def bent(raw: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A record with all fields but its kind empty, of the wrong type, or no number."""
    for value in (None, "some", [1], {}, -1, 0):
        yield {key: kept if key in ("id", "kind", "category") else value for key, kept in raw.items()}
    measured = raw.get("measured") or {}
    for value in ("some", 0, [None, "x"]):
        yield {**raw, "measured": dict.fromkeys(measured, value)}


@pytest.mark.parametrize("kind", sorted({str(raw["kind"]) for raw in RECORDS}))
def test_bent_records_of_every_kind(kind: str, tmp_path: Path) -> None:
    raw = next(each for each in RECORDS if each["kind"] == kind)
    facts = written(tmp_path, perf_published=[*bent(raw), {"id": "x", "kind": "phase of the moon"}])
    for section in accuracy.sections(facts, list(accuracy.SECTIONS), fitted=False):
        assert all(each["reason"] for each in section.excluded)


@pytest.mark.parametrize("name", ["fsdp_memory", "peer_configs", "bug_reports"])
def test_bent_records_of_other_files(name: str, tmp_path: Path) -> None:
    whole = json.loads((Facts().folder / f"{name}.json").read_text(encoding="utf-8"))
    records = whole if isinstance(whole, list) else whole.get("rows") or whole.get("records")
    facts = written(tmp_path, **{name: [odd for raw in records[::20] for odd in bent(raw)]})
    for section in accuracy.sections(facts, list(accuracy.SECTIONS), fitted=False):
        assert all(each["reason"] for each in section.excluded)
