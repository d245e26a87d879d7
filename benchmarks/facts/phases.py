"""The section of phases and ratios: records that measure generation alone, shares of a step, MFU or relative rates.

Takes Facts, gives a Section. What generation takes, its tokens a second, the share of a step that it is, the model
FLOPs that training uses of the peak, and how rates scale, each beside the plan's figure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from statistics import median
from typing import Any

from benchmarks.facts.predict import Planned, plan, predict
from benchmarks.facts.records import Record, number, read
from benchmarks.facts.rules import Case, UnusableError, fill
from benchmarks.facts.section import Facts, Section
from flowrl.machine.devices import DEVICES

NOT_MINE = ("e2e_step", "train_microbatch", "weight_sync", "memory_feasible", "memory_infeasible")
NOT_MINE_RANKINGS = ("placement_ranking", "generation_tp_ranking")
"""Kinds of other sections."""
TRAINING = ("train", "logprob", "ref")


def rows(facts: Facts) -> Section:
    """The section."""
    table: list[dict[str, Any]] = []
    excluded: list[dict[str, str]] = []
    records = [read(raw) for raw in facts.perf]
    first = _first_of_scaling(records)
    for record in records:
        if record.kind in NOT_MINE or record.kind in NOT_MINE_RANKINGS:
            continue
        try:
            table.extend(_rows(record, first))
        except UnusableError as reason:
            excluded.append({"id": record.id, "reason": str(reason)})
    errors = [abs(row["error"]) for row in table]
    summary = {"rows": len(table), "median |error|": median(errors) if errors else None}
    return Section("phases and ratios", table, excluded, summary)


def _rows(record: Record, first: Mapping[str, Record]) -> Iterator[dict[str, Any]]:
    found = list(_figures(record, first))
    if not found:
        raise UnusableError(f"`{record.kind}` measures nothing that a plan says: {', '.join(record.measured) or '-'}")
    for what, measured, predicted, case in found:
        yield {
            "id": record.id,
            "what": what,
            "measured": measured,
            "predicted": predicted,
            "error": predicted / measured - 1,
            "filled": list(case.filled),
        }


def _figures(record: Record, first: Mapping[str, Record]) -> Iterator[tuple[str, float, float, Case]]:
    """What, measured, predicted."""
    gen, rate = record.number("gen_time_s"), record.number("gen_tokens_per_s")
    shares, mfu = record.measured.get("share_pct"), record.number("train_mfu")
    relative = record.measured.get("relative_samples_per_s")
    if not any((gen, rate, isinstance(shares, dict), mfu, isinstance(relative, dict))):
        return
    planned = _planned(record)
    case, predicted = planned.case, predict(planned)
    if gen:
        yield "generation, s", gen, predicted.phases["gen"], case
    elif rate:
        made = case.prompts * case.samples * case.response_mean
        yield "generation, tokens/s", rate, made / predicted.phases["gen"], case
    if isinstance(shares, dict) and (said := number(shares.get("rollout"))):
        parts = [predicted.phases.get(name, 0.0) for name in ("gen", *TRAINING)]
        reward = number(shares.get("reward")) or 0.0
        yield "generation, share of generation and training", said / (100 - reward), parts[0] / sum(parts), case
    if mfu:
        yield "training, model FLOPs of the peak", _share(mfu), _mfu(planned, predicted.phases["train"]), case
    if isinstance(relative, dict):
        yield from _relative(record, relative, planned, predicted.step, first)


def _planned(record: Record) -> Planned:
    """Rollout alone is planned in the step that it belongs to."""
    case = fill(record)
    return plan(replace(case, resident=False) if record.kind.startswith("generation") else case)


def _share(mfu: float) -> float:
    return mfu / 100 if mfu > 1 else mfu


def _mfu(planned: Planned, seconds: float) -> float:
    """6 FLOPs per active parameter and token over the peak, as MFU is published: attention not counted."""
    case, shape = planned.case, planned.shapes["policy"]
    trainers = sum(pool.gpus for pool in case.pools if "actor_train" in pool.roles)
    peak = DEVICES[case.gpu].bf16_flops_per_second * trainers
    return 6.0 * shape.multiplied_parameters * case.tokens / seconds / peak


def _first_of_scaling(records: list[Record]) -> dict[str, Record]:
    """Of each family of relative rates, the record that they are relative to: the one with the fewest devices."""
    found: dict[str, Record] = {}
    for record in sorted((r for r in records if r.kind == "scaling" and r.count), key=lambda each: each.count or 0):
        found.setdefault(_stem(record), record)
    return found


def _stem(record: Record) -> str:
    return f"{record.system} {record.models.get('actor')}"


def _relative(
    record: Record, relative: Mapping[str, Any], planned: Planned, step: float, first: Mapping[str, Record]
) -> Iterator[tuple[str, float, float, Case]]:
    """Samples a second over those of the smallest cluster, of each system for itself."""
    base = first.get(_stem(record))
    if base is None or base.id == record.id:
        return
    before = plan(fill(base))
    rates = [p.case.prompts * p.case.samples / s for p, s in ((planned, step), (before, predict(before).step))]
    said = base.measured.get("relative_samples_per_s")
    for system, value in relative.items():
        start = number(said.get(system)) if isinstance(said, dict) else None
        if start and (now := number(value)):
            yield f"samples/s over {base.count} devices, {system}", now / start, rates[0] / rates[1], planned.case
