"""Memory verdicts, balanced: what was published as working must fit, what ran out of memory must not, and neither must
working flows where an independent bound is over the card.

Takes Facts; gives the section `verdicts`. Each record is a row or is left out with its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from benchmarks.facts import bounds
from benchmarks.facts.causes import cause_classes, names_cause
from benchmarks.facts.flows import document_of, text_of
from benchmarks.facts.job_plans import Verdict, verdict_of, verdict_of_document
from benchmarks.facts.jobs import GIB, Job, UnreadableError
from benchmarks.facts.memory_rows import job_of_row
from benchmarks.facts.peers import CARD_OF, job_of
from benchmarks.facts.records import read
from benchmarks.facts.reports import MEMORY_KINDS, report_of
from benchmarks.facts.rules import UnusableError, fill
from benchmarks.facts.section import Facts, Section, bar

T = TypeVar("T")
WORKS, OOM, BOUND, RAN, UNTOLD = "works", "oom", "bound", "ran", "oom without facts"
"""Lists of records: the first three have bars."""
CONTESTED = "contested"
BARS = {WORKS: 0.95, OOM: 0.80, BOUND: 1.0}


@dataclass
class Found:
    """Rows and records left out, as they come."""

    rows: list[dict[str, Any]]
    excluded: list[dict[str, str]]

    def leave_out(self, id: str, reason: str) -> None:
        self.excluded.append({"id": id, "reason": reason})


def rows(facts: Facts) -> Section:
    """Every record about memory with a verdict."""
    found = Found([], [])
    judge_works(facts, found)
    judge_oom(facts, found)
    judge_ran(facts, found)
    return Section("verdicts", found.rows, found.excluded, summary_of(found.rows), _text(found))


# -- the lists --------------------------------------------------------------------------------------------------------


def judge_works(facts: Facts, found: Found) -> None:
    """Configurations published as working, and their variants that a bound rules out."""
    for record in facts.configs:
        id = str(record.get("id"))
        if CONTESTED in str(record.get("notes") or "").lower():
            found.leave_out(id, f"its own notes call it contested: {record['notes']}")
            continue
        job = _read(id, found, lambda record=record: job_of(record))
        if job is None:
            continue
        size = record.get("params_b")
        said_size = float(size) if isinstance(size, int | float) else None
        row = _row(job, WORKS, True, found)
        if row is not None:
            row["named"] = job.gpu_origin == "record"
            row["bound_gib"] = round(bounds.least(job, said_size)[0] / GIB, 1)
            found.rows.append(row)
        for variant, how in _variants(job, said_size):
            row = _row(variant, BOUND, False, found)
            if row is not None:
                found.rows.append(row | {"id": f"{variant.id} {_changed(job, variant)}", "bound": how})


def _variants(job: Job, said: float | None) -> Iterator[tuple[Job, str]]:
    for made in (bounds.smaller_card(job, said), bounds.larger_budget(job, said)):
        if made is not None:
            yield made


def _changed(job: Job, variant: Job) -> str:
    if variant.gpu != job.gpu:
        return f"on {variant.gpu}"
    before, after = (_budget(each) for each in (job, variant))
    return f"with micro-batches x{after // before}"


def _budget(job: Job) -> int:
    actor = job.party("actor_train")
    return (actor.update_tokens if actor is not None else None) or 1


def judge_oom(facts: Facts, found: Found) -> None:
    """Reports of memory that ran out, and rows that say so."""
    for record in facts.reports:
        if not MEMORY_KINDS.match(str(record.get("kind"))):
            continue
        id = str(record.get("id"))
        if str(record["kind"]).startswith("host_ram"):
            found.leave_out(id, "host memory that leaks or that the report does not size")
            continue
        reported = _read(id, found, lambda record=record: report_of(record, facts.configs))
        if reported is None:
            continue
        row = _row(reported.job, OOM if reported.has_facts else UNTOLD, False, found)
        if row is not None:
            found.rows.append(row | {"id": id} | _cause(record, row))
    for record in (each for each in facts.perf if each.get("kind") == "memory_infeasible"):
        job = _read(str(record.get("id")), found, lambda record=record: job_of_row(record))
        row = _row(job, OOM, False, found) if job is not None else None
        if row is not None:
            found.rows.append(row)


def _cause(record: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    classes = cause_classes(record)
    if row["fits"] or not classes:
        return {"cause": record.get("cause"), "named_cause": None}
    over = row["need_gib"] - row["limit_gib"]
    return {"cause": record.get("cause"), "named_cause": names_cause(classes, row["lines"], over)}


def judge_ran(facts: Facts, found: Found) -> None:
    """Steps that were measured, where layouts and lengths are said; and minima said to be feasible. No bar."""
    for record in facts.perf:
        id = str(record.get("id"))
        if record.get("kind") == "memory_feasible":
            job = _read(id, found, lambda record=record: job_of_row(record))
            row = _row(job, RAN, True, found) if job is not None else None
            found.rows += [row] if row is not None else []
        if record.get("kind") != "e2e_step":
            continue
        try:
            case = fill(read(record))
        except UnusableError as error:
            found.leave_out(id, str(error))
            continue
        if not case.train or not case.rollout or "most response" in case.filled:
            found.leave_out(id, "no layouts or no length: a step that ran, not a test of memory")
            continue
        try:
            verdict = verdict_of_document(text_of(_with_own_loss(document_of(case), read(record).engine)))
        except UnreadableError as error:
            found.leave_out(id, str(error))
            continue
        found.rows.append(_told(id, RAN, case.gpu, True, verdict))


def _with_own_loss(document: dict[str, Any], system: str) -> dict[str, Any]:
    """verl's trainers make their losses as peers_verl.py says."""
    ways = {"fsdp": "in_place", "megatron": "kernel"} if system == "verl" else {}
    for role in document["roles"].values():
        if role.get("backend") in ways:
            role["engine"] = {**role.get("engine", {}), "cross_entropy": ways[role["backend"]]}
    return document


# -- one row ----------------------------------------------------------------------------------------------------------


def _read(id: str, found: Found, make: Callable[[], T]) -> T | None:
    try:
        return make()
    except UnreadableError as error:
        found.leave_out(id, str(error))
        return None


def _row(job: Job, list_: str, expected: bool, found: Found) -> dict[str, Any] | None:
    try:
        verdict = verdict_of(job)
    except UnreadableError as error:
        found.leave_out(job.id if list_ != BOUND else f"{job.id} (bound)", str(error))
        return None
    return _told(job.id, list_, job.gpu, expected, verdict) | {"gpu_origin": job.gpu_origin, "filled": [*job.filled]}


def _told(id: str, list_: str, gpu: str, expected: bool, verdict: Verdict) -> dict[str, Any]:
    return {
        "id": id,
        "list": list_,
        "gpu": gpu,
        "fits": verdict.fits,
        "right": verdict.fits is expected,
        "phase": verdict.phase,
        "line": verdict.line,
        "need_gib": round(verdict.need_gib, 1),
        "limit_gib": round(verdict.limit_gib, 1),
        "peak_gib": round(verdict.peak_gib, 1),
        "lines": [(name, round(gib, 2)) for name, gib in verdict.lines],
        "left_out": [*verdict.left_out],
    }


def summary_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in (WORKS, OOM, BOUND, RAN, UNTOLD):
        here = [row for row in rows if row["list"] == name]
        right = sum(row["right"] for row in here)
        share = round(right / len(here), 3) if here else None
        found[name] = bar(share, BARS[name], at_most=False) if name in BARS else share
        found[f"{name}: right of all"] = f"{right} of {len(here)}"
    named = [row for row in rows if row.get("named")]
    found["works, card named by the record"] = f"{sum(row['right'] for row in named)} of {len(named)}"
    below = [row["id"] for row in rows if row.get("bound_gib", 0.0) > row["peak_gib"]]
    found["works: planned below the bound"] = below
    causes = [row["named_cause"] for row in rows if row["list"] == OOM and row.get("named_cause") is not None]
    found["oom: refused for the cause given"] = f"{sum(causes)} of {len(causes)}"
    found["wrong"] = [row["id"] for row in rows if not row["right"] and row["list"] in BARS]
    return found


def _text(found: Found) -> str:
    lines = [f"rule of card, {name}: {' or '.join(cards)} ({why})" for name, (cards, why) in CARD_OF.items()]
    for name in (WORKS, OOM, BOUND, RAN, UNTOLD):
        lines.append(f"-- {name}")
        lines += [_line(row) for row in found.rows if row["list"] == name]
    return "\n".join(lines)


def _line(row: Mapping[str, Any]) -> str:
    mark = "  " if row["right"] else "X "
    word = "fits" if row["fits"] else "over"
    need = f"{row['need_gib']:8.1f} of {row['limit_gib']:6.1f}"
    said = f"{mark}{row['id'][:46]:<47}{row['gpu']:<10}{word} {need}  {row['phase'][:26]:<27}{row['line'][:30]}"
    return f"{said}\n      {row['bound']}" if row.get("bound") else said
