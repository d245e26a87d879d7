"""The section of published hand-overs: every record has a row or a reason, near ones are near, odd ones do no harm."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from benchmarks.facts import sync
from benchmarks.facts.section import Facts, Section

FACTS = Facts()


@lru_cache(maxsize=1)
def found() -> Section:
    return sync.rows(FACTS)


@dataclass(frozen=True)
class Some:
    """Facts with other records."""

    perf: list[dict[str, Any]]
    folder: Path = Path()


def record(**changed: Any) -> dict[str, Any]:
    """Like the published table of verl's checkpoint engine."""
    plain = {
        "id": "one",
        "source": "a table",
        "system": "verl fully_async",
        "models": {"actor": "Qwen3-30B-A3B"},
        "gpu": "H20",
        "num_gpus": 32,
        "placement": "disaggregated 16 train + 16 rollout ranks",
        "parallelism": {},
        "train_backend": "Megatron",
        "rollout_backend": "vLLM",
        "measured": {"weight_sync_s": 4.38},
        "kind": "weight_sync",
    }
    return {**plain, **changed}


def section(*records: dict[str, Any]) -> Section:
    return sync.rows(Some(list(records)))  # pyright: ignore[reportArgumentType]


def test_every_record_has_a_row_or_a_reason() -> None:
    ids = {raw["id"] for raw in FACTS.perf if raw.get("kind") == "weight_sync"}
    told = {row["id"] for row in found().rows}
    left = {row["id"]: row["reason"] for row in found().excluded}
    assert ids <= told | set(left)
    assert not told & set(left)
    assert all(left.values())
    assert len(told) >= 15


def test_records_with_nothing_filled_are_near() -> None:
    """They set the constants, so this holds the formulas; the others by a factor."""
    for row in found().rows:
        if not row["filled"]:
            assert abs(row["error"]) < 0.25, row["id"]
    assert found().summary["within_factor_2"] >= 0.75


def test_more_of_the_same_hardware_comes_out_near() -> None:
    """verl's checkpoint engine on H20, 30B-A3B (peers/perf_notes.md): 4.38 s; a broadcast tensor by tensor of 32B on
    H100: 14.2 to 18.1 s."""
    engine = section(record()).rows[0]
    plain = record(models={"actor": "Qwen2.5-32B"}, gpu="H100", notes="NCCL broadcast", measured={"weight_sync_s": 16})
    assert engine["way"] == "broadcast"
    assert abs(engine["error"]) < 0.2
    assert 14.2 <= section(plain).rows[0]["predicted_s"] <= 18.1


def test_the_last_version_is_compared_and_the_others_are_told() -> None:
    versions = {"before": 60, "after_1": 30, "after_2": 4.4, "total before": 90}
    row = section(record(measured={"weight_sync_s": {**versions, "after_3": 4.0}})).rows[0]
    assert row["measured_s"] == 4.0
    assert all(name in row["told"] for name in versions)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"gpu": None}, "no device"),
        ({"models": {"actor": "a 16B mixture"}}, "no model"),
        ({"placement": "colocated", "num_gpus": None}, "number of devices"),
        ({"placement": ""}, "which devices"),
        ({"measured": {"weight_sync_s": {"naive": 420}}}, "no finished version"),
        ({"measured": {"weight_sync_s": "soon"}}, "'soon'"),
    ],
)
def test_a_record_that_says_too_little_is_left_out(changed: dict[str, Any], reason: str) -> None:
    left = section(record(**changed))
    assert not left.rows
    assert reason in left.excluded[0]["reason"]


@pytest.mark.parametrize("key", ["models", "gpu", "placement", "parallelism", "train_backend", "source", "measured"])
@pytest.mark.parametrize("value", [None, {}, [], 3, "x -> y", {"train": {"tp": 7}}])
def test_odd_records_break_nothing(key: str, value: Any) -> None:
    raw = copy.deepcopy(record())
    raw[key] = value
    made = section(raw)
    assert len(made.rows) + len(made.excluded) == 1
