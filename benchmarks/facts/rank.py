"""The section of rankings: which of two published runs is faster, and whether the plans say so too.

Takes Facts, gives a Section with one row a comparison: pairs of e2e records that differ in one thing (asynchrony or
split at equal devices, number of devices, system), placements compared by one record, and cuts of generation. Pairs
whose measured difference is within NOISE say nothing; comparisons that the data itself answers both ways are listed and
not counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from benchmarks.facts.predict import Planned, plan, predict
from benchmarks.facts.records import Record, read
from benchmarks.facts.rules import Case, Pool, UnusableError, fill
from benchmarks.facts.section import Facts, Section, bar
from benchmarks.facts.times import Entry, entries
from flowrl.machine.profile import PROFILE

NOISE = 0.05
"""Measured times that differ by less say nothing (NVIDIA's own study of one yaml: 5 % between batches)."""
RIGHT = 0.90


@dataclass(frozen=True)
class Comparison:
    kind: str
    faster: str
    slower: str
    measured: tuple[float, float] | None
    predicted: tuple[float, float]
    key: tuple[object, ...]
    """The faster setting and the slower one, without versions of systems."""

    @property
    def right(self) -> bool:
        return self.predicted[0] < self.predicted[1]


def rows(facts: Facts) -> Section:
    """The section."""
    found, excluded = entries(facts)
    compared = list(_pairs(found))
    for raw in facts.perf:
        record = read(raw)
        if record.kind not in ("placement_ranking", "generation_tp_ranking"):
            continue
        try:
            compared.extend(_options(record))
        except UnusableError as reason:
            excluded.append({"id": record.id, "reason": str(reason)})
    excluded = [each for each in excluded if "ranking" in _kind(facts, each["id"])]
    both_ways = disputed(compared)
    table = [_row(each, each.key in both_ways) for each in compared]
    return Section("rankings", table, excluded, _summary(table), _text(table))


def _kind(facts: Facts, id: str) -> str:
    return next((str(raw.get("kind")) for raw in facts.perf if raw.get("id") == id), "")


# -- pairs of step times ----------------------------------------------------------------------------------------------


def _pairs(found: Sequence[Entry]) -> Iterator[Comparison]:
    times = {entry.record.id: entry.circles.quick(PROFILE) for entry in found}
    for one, other in combinations(found, 2):
        kind = _difference(one, other)
        if kind is None or abs(one.seconds - other.seconds) <= NOISE * min(one.seconds, other.seconds):
            continue
        fast, slow = (one, other) if one.seconds < other.seconds else (other, one)
        yield Comparison(
            kind=kind,
            faster=fast.record.id,
            slower=slow.record.id,
            measured=(fast.seconds, slow.seconds),
            predicted=(times[fast.record.id], times[slow.record.id]),
            key=(_setting(fast), _setting(slow)),
        )


def _difference(one: Entry, other: Entry) -> str | None:
    """What two records differ in, if it is one thing; None if they are not comparable."""
    a, b = one.planned.case, other.planned.case
    if (a.gpu, _work(a)) != (b.gpu, _work(b)):
        return None
    same_system = one.record.system.split()[0] == other.record.system.split()[0]
    same_version = one.record.system == other.record.system
    if a.count == b.count:
        if not same_system:
            return "systems" if _is_one_study(one.record, other.record) else None
        if not same_version and "verl" not in one.record.system:
            return None
        if (a.lag > 0) != (b.lag > 0):
            return "sync and async"
        return "colocated and split" if (len(a.pools) > 1) != (len(b.pools) > 1) else None
    if same_version and (len(a.pools) > 1, a.lag) == (len(b.pools) > 1, b.lag):
        return "scaling"
    return None


def _work(case: Case) -> tuple[object, ...]:
    """Models and workload; a mean length moves from run to run."""
    lengths = (case.prompt_most, case.response_most)
    return (tuple(sorted(case.models.items())), case.algorithm, case.prompts, case.samples, *lengths)


def _is_one_study(one: Record, other: Record) -> bool:
    """Whether one publication compares the two systems: their ids start alike."""
    return one.id.split("-")[0] == other.id.split("-")[0]


def _setting(entry: Entry) -> tuple[object, ...]:
    case = entry.planned.case
    return (
        entry.record.engine,
        case.gpu,
        _work(case),
        case.count,
        case.lag,
        tuple((pool.gpus, pool.roles) for pool in case.pools),
        tuple(sorted(case.train.items())),
        tuple(sorted(case.rollout.items())),
    )


def disputed(compared: Sequence[Comparison]) -> set[tuple[object, ...]]:
    """Comparisons that the data answers both ways: the same two settings, once this and once that one faster."""
    keys = {each.key for each in compared}
    return {key for key in keys if key[::-1] in keys}


# -- placements and cuts of one record --------------------------------------------------------------------------------


def _options(record: Record) -> Iterator[Comparison]:
    best = record.measured.get("best_placement")
    if record.kind == "generation_tp_ranking":
        yield from _cuts(record)
    elif isinstance(best, str):
        yield from _placements(record, best)
    else:
        raise UnusableError(
            "its modes are other flows, with updates on what arrives: benchmarks/search.py --section rankings has them"
        )


def _cuts(record: Record) -> Iterator[Comparison]:
    """Generation time by tp, training as said. What trains stays on the devices, as it did there."""
    best = round(record.number("best_gen_tp") or 0)
    if not best:
        raise UnusableError("no best cut of generation")
    case = fill(record)
    times: dict[int, float] = {}
    for tp in (1, 2, 4, 8):
        try:
            planned = plan(replace(case, rollout={"tp": tp}, resident=True))
        except UnusableError:
            continue
        times[tp] = predict(planned).phases.get("gen", 0.0)
    if best not in times:
        raise UnusableError(f"its best cut of generation, tp {best}, cannot be planned")
    for tp, seconds in times.items():
        if tp != best:
            names = (f"{record.id} generation tp {best}", f"generation tp {tp}")
            yield Comparison("generation cut", *names, None, (times[best], seconds), (record.id, tp))


def _placements(record: Record, best: str) -> Iterator[Comparison]:
    for count in record.counts or ():
        case = fill(record, count=count)
        times: dict[str, float] = {}
        for name, pools in _placements_of(case).items():
            try:
                times[name] = _planned_seconds(replace(case, pools=pools))
            except UnusableError:
                continue
        named = next((name for name in times if name in best.lower()), None)
        if named is None:
            raise UnusableError(f"its best placement `{best}` is none of {', '.join(times)}")
        for name, seconds in times.items():
            if name != named:
                names = (f"{record.id} on {count}: {named}", name)
                yield Comparison("placement", *names, None, (times[named], seconds), (record.id, count, name))


def _planned_seconds(case: Case) -> float:
    planned: Planned = plan(case)
    return predict(planned).step


def _placements_of(case: Case) -> Mapping[str, tuple[Pool, ...]]:
    """HybridFlow's: colocate; split: actor and reference beside critic and reward; standalone: a pool for each model,
    half of the devices for the actor, a quarter for the critic, an eighth for each of the others."""
    count, roles = case.count, [role for pool in case.pools for role in pool.roles]
    actor = tuple(role for role in ("actor_train", "actor_infer") if role in roles)
    first = tuple(role for role in ("actor_train", "actor_infer", "reference") if role in roles)
    second = tuple(role for role in roles if role not in first)
    parts = {
        "actor": (actor, count // 2),
        "critic": (("critic",), count // 4),
        "reference": (("reference",), count // 8),
        "reward": (("reward",), count // 8),
    }
    return {
        "colocate": (Pool("all", count, tuple(roles)),),
        "split": (Pool("first", count // 2, first), Pool("second", count - count // 2, second)),
        "standalone": tuple(Pool(name, gpus, own) for name, (own, gpus) in parts.items()),
    }


# -- the table --------------------------------------------------------------------------------------------------------


def _row(each: Comparison, disputed: bool) -> dict[str, Any]:
    return {
        "id": f"{each.faster} < {each.slower}",
        "kind": each.kind,
        "measured": None if each.measured is None else list(each.measured),
        "predicted": list(each.predicted),
        "right": each.right,
        "disputed": disputed,
    }


def _summary(table: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    counted = [row for row in table if not row["disputed"]]
    asked = [row for row in counted if row["kind"] != "systems"]
    found: dict[str, Any] = {
        "comparisons": len(table),
        "disputed within the data": len(table) - len(counted),
        "right": bar(_share(asked), RIGHT, at_most=False),
        "right, comparisons of systems too": bar(_share(counted), RIGHT, at_most=False),
    }
    for kind in dict.fromkeys(row["kind"] for row in counted):
        own = [row for row in counted if row["kind"] == kind]
        found[f"right: {kind}"] = f"{sum(row['right'] for row in own)} of {len(own)}"
    return found


def _share(rows: Sequence[Mapping[str, Any]]) -> float | None:
    return sum(bool(row["right"]) for row in rows) / len(rows) if rows else None


def _text(table: Sequence[Mapping[str, Any]]) -> str:
    lines: list[str] = []
    for kind in dict.fromkeys(row["kind"] for row in table):
        own = [row for row in table if row["kind"] == kind]
        wrong = [row for row in own if not row["right"]]
        lines.append(f"{kind}: {len(own)} comparisons, {len(wrong)} wrong{':' if wrong else ''}")
        for row in wrong:
            measured = "" if row["measured"] is None else "measured {:.0f} {:.0f}, ".format(*row["measured"])
            disputed = " (disputed)" if row["disputed"] else ""
            lines.append(f"    {row['id']}{disputed}")
            lines.append("        {}planned {:.1f} {:.1f}".format(measured, *row["predicted"]))
    return "\n".join(lines)
