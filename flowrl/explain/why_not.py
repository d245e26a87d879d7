"""The answer to `why not so?`: what planning with the wishes comes to, against the plan.

Takes a stage as it is planned and as the wishes would have it; gives the difference in words that a user knows: the
phase and the ledger line that bind, or the instructions of the critical circle that take longer.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

import msgspec

from flowrl.diag.diagnostic import Diagnostic, FlowError, Severity
from flowrl.execution.steady import is_plain
from flowrl.explain.question import Wish
from flowrl.plan.changes import Change
from flowrl.plan.places import layout_text, placement_changes
from flowrl.plan.plan import LedgerLine, Memory, Pool, RolePlacement, StagePlan

SAME_SHARE = 0.001
"""Steps that differ by less are as long."""
PRICE = "price per step"


class Binding(msgspec.Struct, frozen=True, kw_only=True):
    """The phase that does not fit, and the largest line of it."""

    pool: str
    device: str
    phase: str
    peak_bytes: int
    limit_bytes: int
    what: str
    """Of the largest line."""
    role: str | None
    line_bytes: float


class Blame(msgspec.Struct, frozen=True, kw_only=True):
    """What one op, or another instruction, has of the circle that bounds the step; 0 where it is not on it."""

    what: str
    seconds: float
    before_seconds: float


class WhyNot(msgspec.Struct, frozen=True, kw_only=True):
    """What `flowrl why-not` says."""

    flowrl_why_not: int = 1
    """Version of this format."""
    question: str
    stage: str
    verdict: str
    """planned: it is what is planned. infeasible: it does not fit. impossible: no placement can be so. slower, dearer,
    equal, faster: it can; fits: it does and the plan does not."""
    step_seconds: float
    """Of the plan."""
    asked_step_seconds: float | None = None
    price_per_step: float | None = None
    asked_price_per_step: float | None = None
    pools: tuple[str, ...] = ()
    """What was planned for the question, a pool each."""
    changes: tuple[Change, ...] = ()
    """What that changes of where roles live."""
    binding: Binding | None = None
    helps: tuple[str, ...] = ()
    """Of what does not fit: the cheapest edits, each planned; of what is impossible: what to write."""
    reason: str | None = None
    """Of what is impossible: the code and what it says."""
    blame: tuple[Blame, ...] = ()
    """By how the critical circle differs: what it has more of first, of what is faster what it has less of."""
    write: tuple[str, ...] = ()
    """Lines of a flow that ask for it: keys by their path, and a `placement:`."""
    refused: tuple[str, ...] = ()
    """What a run would refuse of it and does of the plan not: it is planned, and not built yet."""


def is_planned(wish: Wish, pools: Sequence[Pool], generators: Collection[str] = ()) -> bool:
    """Whether the pools are as the wish has them. `generators`: roles that disaggregation puts on devices of their
    own."""
    homes = {entry.role: (pool, entry) for pool in pools for entry in pool.roles}
    here = [homes[name] for name in wish.roles if name in homes]
    if wish.mode is not None:
        return _is_mode(wish.mode, pools, generators)
    if wish.gpus is not None:
        return any(pool.name == wish.pool and len(pool.devices) == wish.gpus for pool in pools)
    if wish.pool is not None:
        return all(pool.name == wish.pool for pool, _ in here)
    if wish.apart:
        return len({pool.name for pool, _ in here}) == len(here) and (len(here) > 1 or len(here[0][0].roles) == 1)
    if len(wish.roles) > 1:
        return len({pool.name for pool, _ in here}) == 1
    return all(_is_so(wish, entry) for _, entry in here)


def _is_mode(mode: str, pools: Sequence[Pool], generators: Collection[str]) -> bool:
    parts = [{entry.role in generators for entry in pool.roles} for pool in pools if pool.devices]
    return len(parts) == 1 if mode == "colocated" else len(parts) > 1 and all(len(part) == 1 for part in parts)


def _is_so(wish: Wish, entry: RolePlacement) -> bool:
    layout = entry.layout
    axes = {"tp": layout.tp, "pp": layout.pp, "cp": layout.cp, "ep": layout.ep}
    if wish.axes and axes != {name: wish.axes.get(name, 1) for name in axes}:
        return False
    if wish.stays is not None and entry.offloaded == wish.stays:
        return False
    return wish.recompute is None or entry.recompute == wish.recompute


def planned(question: str, stage: StagePlan) -> WhyNot:
    return WhyNot(
        question=question,
        stage=stage.name,
        verdict="planned",
        step_seconds=stage.estimate.step_seconds,
        price_per_step=_price(stage),
        pools=pools_text(stage.pools),
    )


def impossible(question: str, stage: StagePlan, error: FlowError) -> WhyNot:
    """No placement of any size can be so: what a plan would be refused with."""
    first = error.diagnostics[0]
    said = [*(label.text for label in first.labels[:1]), *first.notes[:1], *([first.why] if first.why else [])]
    return WhyNot(
        question=question,
        stage=stage.name,
        verdict="impossible",
        step_seconds=stage.estimate.step_seconds,
        price_per_step=_price(stage),
        reason=f"{first.code}, {first.headline}: {'; '.join(said)}",
        helps=tuple(each.text for each in first.helps),
    )


def answered(
    question: str, stage: StagePlan, asked: StagePlan, diagnostics: Sequence[Diagnostic], write: tuple[str, ...] = ()
) -> WhyNot:
    """`asked` is the stage planned with the question's wishes, `diagnostics` what placing it told, `write` what a flow
    says to have it."""
    faults = [each for each in diagnostics if each.severity is Severity.ERROR]
    common = WhyNot(
        question=question,
        stage=stage.name,
        verdict="infeasible" if faults else _verdict(stage, asked),
        step_seconds=stage.estimate.step_seconds,
        asked_step_seconds=asked.estimate.step_seconds,
        price_per_step=_price(stage),
        asked_price_per_step=_price(asked),
        pools=pools_text(asked.pools),
        changes=tuple(placement_changes(stage, asked)),
        write=write,
    )
    if faults:
        helps = tuple(each.text for fault in faults for each in fault.helps)
        return msgspec.structs.replace(common, binding=_binding(asked.memory), helps=helps)
    return msgspec.structs.replace(common, blame=blame(stage, asked))


def _verdict(stage: StagePlan, asked: StagePlan) -> str:
    if any(each.peak_bytes > each.limit_bytes for each in stage.memory):
        return "fits"
    one, other = stage.estimate.step_seconds, asked.estimate.step_seconds
    price, asked_price = _price(stage), _price(asked)
    if abs(other - one) > SAME_SHARE * one:
        return "slower" if other > one else "faster"
    if price is not None and asked_price is not None and abs(asked_price - price) > SAME_SHARE * price:
        return "dearer" if asked_price > price else "faster"
    return "equal"


def _price(stage: StagePlan) -> float | None:
    return next((line.value for line in stage.estimate.lines if line.what == PRICE), None)


def _binding(memory: Sequence[Memory]) -> Binding | None:
    tightest = max(memory, key=lambda each: each.peak_bytes / max(1, each.limit_bytes), default=None)
    if tightest is None:
        return None
    largest: LedgerLine | None = max(tightest.lines, key=lambda line: line.value, default=None)
    return Binding(
        pool=tightest.pool,
        device=tightest.device,
        phase=tightest.phase,
        peak_bytes=tightest.peak_bytes,
        limit_bytes=tightest.limit_bytes,
        what="" if largest is None else largest.what,
        role=None if largest is None else largest.role,
        line_bytes=0.0 if largest is None else largest.value,
    )


def blame(stage: StagePlan, asked: StagePlan) -> tuple[Blame, ...]:
    """Seconds on the critical circle by op, all firings of an op as one: where `asked` is slower, what its circle has
    more of comes first, where it is faster, what it has less of."""
    before, after = _circle(stage), _circle(asked)
    found = [
        Blame(what=name, seconds=after.get(name, 0.0), before_seconds=before.get(name, 0.0))
        for name in dict.fromkeys((*after, *before))
    ]
    changed = [each for each in found if abs(each.seconds - each.before_seconds) > 1e-9]
    sign = 1 if asked.estimate.step_seconds < stage.estimate.step_seconds else -1
    return tuple(sorted(changed, key=lambda each: (sign * (each.seconds - each.before_seconds), each.what)))


def _circle(stage: StagePlan) -> Mapping[str, float]:
    """Seconds by op; what works in some steps only (saving) is not of the plain step."""
    seldom = {each.id for each in stage.programs.instructions if not is_plain(each)}
    found: dict[str, float] = {}
    for id in (each for each in stage.estimate.critical if each not in seldom):
        name = re.sub(r" \d+/\d+$", "", id.removeprefix("run "))
        found[name] = found.get(name, 0.0) + stage.estimate.durations.get(id, 0.0)
    return found


def pools_text(pools: Sequence[Pool]) -> tuple[str, ...]:
    """`rollout: 4 × H100-80G: actor_infer dp4`, a pool of devices each."""
    return tuple(
        f"{pool.name}: {len(pool.devices)} × {pool.device}: {', '.join(_role_text(entry) for entry in pool.roles)}"
        for pool in pools
        if pool.devices
    )


def _role_text(entry: RolePlacement) -> str:
    recompute = "" if entry.recompute == "none" else f" recompute {entry.recompute}"
    return f"{entry.role} {layout_text(entry.layout)}{' leaves' if entry.offloaded else ''}{recompute}"
