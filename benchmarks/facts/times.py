"""The section of step times: every e2e_step record planned, timed, and compared with what was measured.

Takes Facts, gives a Section. A row is `core` if GPU type (in its field or its notes), number of devices, a length and a
layout are said by the record, which is what the bars are for; `filled` names the gaps that rules closed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import median
from typing import Any

import numpy as np

from benchmarks.facts.fit import Fit, Point, fit
from benchmarks.facts.predict import Circles, Planned, phases_of, plan, seconds_of
from benchmarks.facts.records import Record, number, read
from benchmarks.facts.rules import UnusableError, fill, measured_step
from benchmarks.facts.section import DATA, Facts, Section, bar
from flowrl.machine.profile import PROFILE, Profile

MEDIAN_LEFT_OUT, MEDIAN_ON_ALL, NINTH_TENTH, RANKS = 0.30, 0.20, 0.60, 0.9
DOUBTED = re.compile(r"badly tuned|not a mean|outlier|treat with care|warns that", re.IGNORECASE)
"""Words of a record's own notes that say it is no typical measurement. It counts all the same."""


@dataclass(frozen=True)
class Entry:
    """A record that could be planned and has a time."""

    record: Record
    planned: Planned
    circles: Circles
    seconds: float
    derived: str
    """How the seconds come from the record; "" if it says them."""
    core: bool

    @property
    def filled(self) -> tuple[str, ...]:
        return self.planned.case.filled


@lru_cache(maxsize=4)
def entries(facts: Facts, wanted: Callable[[Record], bool] | None = None) -> tuple[list[Entry], list[dict[str, str]]]:
    """Every wanted e2e_step record that has a time and can be planned; the others with the reason. Planned once for all
    sections that ask."""
    found: list[Entry] = []
    excluded: list[dict[str, str]] = []
    for index, raw in enumerate(facts.perf):
        record = read(raw)
        if record.kind != "e2e_step" or (wanted is not None and not wanted(record)):
            continue
        if raw in facts.perf[:index]:
            excluded.append({"id": record.id, "reason": "the same record stands before it"})
            continue
        try:
            found.append(_entry(record))
        except UnusableError as reason:
            excluded.append({"id": record.id, "reason": str(reason)})
    return found, excluded


def _entry(record: Record) -> Entry:
    case = fill(record)
    measured = measured_step(record, case)
    if measured is None:
        raise UnusableError(f"no time of a step: {', '.join(record.measured) or 'nothing measured'}")
    planned = plan(case)
    return Entry(record, planned, Circles(planned), *measured, is_core(record))


def is_core(record: Record) -> bool:
    """Whether the record says device, number, a length and a layout."""
    lengths = record.response.most or record.response.mean or record.total.most or record.total.mean
    return bool(record.gpu and record.count and lengths and (record.train or record.rollout))


def rows(
    facts: Facts, *, fitted: bool = True, profile: Profile = PROFILE, wanted: Callable[[Record], bool] | None = None
) -> Section:
    """The section. Without `fitted` only the profile as it is shipped is used. A fit for another folder of facts is
    made on its records and on the core records that the repository carries; families are left out of both."""
    found, excluded = entries(facts, wanted)
    shipped = [entry.circles.exact(profile) for entry in found]
    result = fit(profile, points([*found, *_carried(facts, found)])) if fitted and found else None
    table = [
        _row(entry, shipped[index], result, index, profile if result is None else result.profile)
        for index, entry in enumerate(found)
    ]
    return Section("step times", table, excluded, _summary(table, result), "")


def _carried(facts: Facts, found: Sequence[Entry]) -> list[Entry]:
    """Core records of the repository's own folder, if `facts` is another one, without those that it has too."""
    if facts.folder.resolve() == DATA.resolve():
        return []
    ids = {entry.record.id for entry in found}
    return [entry for entry in entries(Facts(), is_core)[0] if entry.record.id not in ids]


def points(found: Sequence[Entry]) -> list[Point]:
    """What a fit is made on. A row with gaps that rules closed says less of the constants."""
    return [
        Point(
            family=entry.record.family,
            names=_names(entry.planned),
            measured=entry.seconds,
            weight=weight(entry),
            quick=entry.circles.quick,
            exact=entry.circles.exact,
        )
        for entry in found
    ]


def _names(planned: Planned) -> frozenset[str]:
    case = planned.case
    experts = {"moe"} if any(shape.experts for shape in planned.shapes.values()) else set[str]()
    return frozenset({case.gpu, case.train_backend, case.rollout_backend, *experts})


def weight(entry: Entry) -> float:
    loose = {"response", "most response", "batch", "gpu"} & set(entry.filled)
    return (1.0 if entry.core else 0.5) / (1 + len(loose))


def _row(entry: Entry, shipped: float, result: Fit | None, index: int, profile: Profile) -> dict[str, Any]:
    record, planned = entry.record, entry.planned
    predicted = shipped if result is None else result.predicted[index]
    phases = phases_of(planned, seconds_of(planned, profile))
    row: dict[str, Any] = {
        "id": record.id,
        "family": record.family,
        "core": entry.core,
        "filled": list(entry.filled),
        "measured": entry.seconds,
        "derived": entry.derived,
        "predicted": predicted,
        "error": predicted / entry.seconds - 1,
        "shipped": shipped,
        "error_shipped": shipped / entry.seconds - 1,
        "phases": {name: round(value, 3) for name, value in phases.items()},
        "measured_phases": _measured_phases(record),
        "doubted": bool(DOUBTED.search(record.notes)),
        "fits": planned.fits,
        "note": planned.note,
    }
    if result is not None:
        row["left_out"] = result.left_out[index]
        row["error_left_out"] = result.left_out[index] / entry.seconds - 1
    return row


PHASE_KEYS = {
    "gen": ("generate_sequences_time_s", "gen_time_s"),
    "train": ("train_time_s",),
    "logprob": ("old_logprob_time_s",),
    "ref": ("ref_time_s",),
    "sync": ("reshard_time_s", "update_weights_s"),
    "wait": ("gen_wait_time_s", "wait_prev_gen_s", "train_wait_s"),
}


def _measured_phases(record: Record) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, keys in PHASE_KEYS.items():
        value = next((v for key in keys if (v := number(record.measured.get(key))) is not None), None)
        if value is not None:
            found[name] = value
    return found


def _summary(table: Sequence[dict[str, Any]], result: Fit | None) -> dict[str, Any]:
    core = [row for row in table if row["core"]]
    said = [row for row in core if "gpu" not in row["filled"]]
    calm = [row for row in core if not row["doubted"]]
    bare = [row for row in said if not set(row["filled"]) - {"prompt"}]
    found: dict[str, Any] = {
        "rows": len(table),
        "core rows": len(core),
        "core rows with no more filled than prompts": len(bare),
    }
    which = "error" if result is not None else "error_shipped"
    found["core, fitted on all: median |error|"] = bar(_median(core, which), MEDIAN_ON_ALL)
    found["core, as shipped: median |error|"] = bar(_median(core, "error_shipped"), MEDIAN_ON_ALL)
    for name, chosen in (
        ("core", core),
        ("core, GPU said", said),
        ("core, GPU said, nothing filled but prompts", bare),
        ("core, without those that their notes doubt", calm),
        ("all", list(table)),
    ):
        if result is None:
            found[f"{name}: median, 90th percentile, rank correlation as shipped"] = _three(
                chosen, "error_shipped", "shipped"
            )
            continue
        found[f"{name}, left out: median |error|"] = bar(_median(chosen, "error_left_out"), MEDIAN_LEFT_OUT)
        found[f"{name}, left out: 90th percentile"] = bar(_percentile(chosen, "error_left_out"), NINTH_TENTH)
        found[f"{name}, left out: Spearman"] = bar(spearman(chosen, "left_out"), RANKS, at_most=False)
    if result is not None:
        found["constants"] = {
            path: {"value": value, "left out": list(result.spread[path])} for path, value in result.constants.items()
        }
    return found


def _three(chosen: Sequence[dict[str, Any]], key: str, value: str) -> list[float | None]:
    return [_median(chosen, key), _percentile(chosen, key), spearman(chosen, value)]


def _median(chosen: Sequence[dict[str, Any]], key: str) -> float | None:
    return median(abs(row[key]) for row in chosen) if chosen else None


def _percentile(chosen: Sequence[dict[str, Any]], key: str) -> float | None:
    return float(np.percentile([abs(row[key]) for row in chosen], 90)) if chosen else None


def spearman(chosen: Sequence[dict[str, Any]], key: str) -> float | None:
    """Rank correlation, ties by their mean rank."""
    if len(chosen) < 3:
        return None
    one, other = (_ranks([float(row[name]) for row in chosen]) for name in ("measured", key))
    if one.std() == 0 or other.std() == 0:
        return None
    return float(np.corrcoef(one, other)[0, 1])


def _ranks(values: Sequence[float]) -> np.ndarray[Any, np.dtype[np.float64]]:
    array = np.array(values)
    return np.array([(array < value).sum() + ((array == value).sum() + 1) / 2 for value in array])
