"""A sweep: one flow planned at many points, what each costs, and which of them nothing beats. Frozen values.

Takes plans, gives points. Knows no flags, and plans nothing itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import replace

from flowrl.diag.diagnostic import Diagnostic, Severity
from flowrl.execution.steady import is_plain
from flowrl.placement.cost.ledger import Given, Number, line
from flowrl.placement.cost.placed import HOST
from flowrl.placement.cost.price import PER_STEP
from flowrl.plan.plan import LedgerLine, Memory, Plan, StagePlan

FITS, INFEASIBLE, REFUSED = "fits", "infeasible", "refused"
STEP, SAMPLES, GPU_SECONDS = "step", "samples", "GPU-seconds per step"
SECONDS, MONEY = "GPU-seconds", "price"
PER_SAMPLE = "sample"


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """What a step waits for most."""

    what: str
    """An op, or another instruction by its id: `actor_infer.generate`."""
    share: float
    """Of the critical circle's seconds."""


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One combination of values, planned."""

    settings: dict[str, str]
    """Axis → value, as given."""
    cluster: str | None
    """What it was planned on: a shorthand, or the cluster's name. None: refused before there was one."""
    devices: int | None
    """Of the cluster."""
    verdict: str
    """fits, infeasible, or refused: no plan could be made."""
    codes: tuple[str, ...] = ()
    """Of the errors, where it does not fit or is refused."""
    reason: str | None = None
    """What the first of them says."""
    used: int | None = None
    """Devices in the plan's pools. None, like every figure below, unless it fits."""
    step_seconds: float | None = None
    """Mean over the steps of the run, where stages differ."""
    samples: float | None = None
    """Of a step."""
    samples_per_second: float | None = None
    gpu_seconds: float | None = None
    """Per step, of the devices in pools."""
    price: float | None = None
    """Per step, in the currency of the prices; None: some device has none."""
    tightest: float | None = None
    """Peak over limit of the fullest device; of one that is infeasible, too."""
    bound: Bound | None = None
    front: bool = False
    """Whether no other point is as fast for less, or as cheap and faster, for the same samples."""
    lines: tuple[LedgerLine, ...] = ()
    """Of the figures: step, samples, GPU-seconds per step, price per step."""


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """What `flowrl sweep` says."""

    flowrl_sweep: int = 1
    """Version of this format."""
    file: str
    name: str
    """Of the flow."""
    objective: str
    """What every point's placement minimises."""
    axes: dict[str, tuple[str, ...]]
    """What varies → its values, in the order of the table."""
    fixed: tuple[str, ...] = ()
    """`--set` flags with one value."""
    cost: str
    """What the front weighs time against: GPU-seconds, or price where every point that fits has one."""
    per: str
    """step; sample, where steps of the points have other numbers of samples, since then a step is not a step."""
    points: tuple[Point, ...]
    planned: int
    """How many there were to plan."""
    interrupted: bool = False
    """Whether it was stopped before all were planned."""

    @property
    def fits(self) -> bool:
        return any(point.verdict == FITS for point in self.points)


def point_of(plan: Plan, settings: dict[str, str], cluster: str) -> Point:
    """The figures of a plan."""
    point = Point(
        settings=settings,
        cluster=cluster,
        devices=plan.cluster.device_count,
        verdict=plan.verdict,
        tightest=max((_fullness(memory) for stage in plan.stages for memory in stage.memory), default=None),
    )
    if plan.verdict != FITS:
        return _told(point, plan.diagnostics)
    lines = _lines(plan)
    values = {each.what: each.value for each in lines}
    slowest = max(plan.stages, key=lambda stage: stage.run.steps * stage.estimate.step_seconds)
    return replace(
        point,
        used=max(_used(stage) for stage in plan.stages),
        step_seconds=values[STEP],
        samples=values[SAMPLES] * values[STEP],
        samples_per_second=values[SAMPLES],
        gpu_seconds=values[GPU_SECONDS],
        price=values.get(PER_STEP),
        bound=bound_of(slowest),
        lines=lines,
    )


def refused(
    diagnostics: Sequence[Diagnostic], settings: dict[str, str], cluster: str | None, devices: int | None
) -> Point:
    """A point of which no plan could be made."""
    return _told(Point(settings=settings, cluster=cluster, devices=devices, verdict=REFUSED), diagnostics)


def _told(point: Point, diagnostics: Sequence[Diagnostic]) -> Point:
    errors = [each for each in diagnostics if each.severity is Severity.ERROR]
    first = errors[0] if errors else None
    reason = None if first is None else " · ".join([first.headline, *(each.text for each in first.labels[:1])])
    return replace(point, codes=tuple(dict.fromkeys(each.code for each in errors)), reason=reason)


def bound_of(stage: StagePlan) -> Bound | None:
    """The instruction, or the firings of one op, that the critical circle spends most on. None without a circle."""
    ops = {each.id: each.op for each in stage.programs.instructions if is_plain(each)}
    spent: dict[str, float] = {}
    for id in (each for each in stage.estimate.critical if each in ops):
        name = ops.get(id) or re.sub(r" \d+/\d+$", "", id.removeprefix("run "))
        spent[name] = spent.get(name, 0.0) + stage.estimate.durations.get(id, 0.0)
    whole = sum(spent.values())
    if whole <= 0:
        return None
    most = max(spent, key=spent.__getitem__)
    return Bound(what=most, share=spent[most] / whole)


def with_front(points: Sequence[Point]) -> tuple[tuple[Point, ...], str, str]:
    """The points with those of the Pareto front marked, what they cost, and of what: of a step, or of a sample."""
    fitting = [point for point in points if point.verdict == FITS]
    cost = MONEY if fitting and all(point.price is not None for point in fitting) else SECONDS
    per = STEP if same([point.samples or 0.0 for point in fitting]) else PER_SAMPLE
    best = pareto([weighed(point, cost, per) for point in fitting])
    kept = {id(point) for point, is_best in zip(fitting, best, strict=True) if is_best}
    return tuple(replace(point, front=id(point) in kept) for point in points), cost, per


def weighed(point: Point, cost: str, per: str) -> tuple[float, float]:
    """Seconds and cost of a point that fits, as the front compares them."""
    whole = (point.samples or 1.0) if per == PER_SAMPLE else 1.0
    spent = point.price if cost == MONEY else point.gpu_seconds
    return (point.step_seconds or 0.0) / whole, (spent or 0.0) / whole


def same(values: Sequence[float]) -> bool:
    """Equal but for rounding."""
    return not values or max(values) - min(values) <= 1e-9 * max(values)


def pareto(pairs: Sequence[tuple[float, float]]) -> list[bool]:
    """Which pairs no other is below in one figure and not above in the other. Equal pairs are in it together."""
    least = float("inf")
    found: dict[tuple[float, float], bool] = {}
    for pair in sorted(set(pairs)):
        found[pair] = pair[1] < least
        least = min(least, pair[1])
    return [found[pair] for pair in pairs]


def _fullness(memory: Memory) -> float:
    if memory.pool == HOST or memory.limit_bytes <= 0:
        return 0.0
    return memory.peak_bytes / memory.limit_bytes


def _used(stage: StagePlan) -> int:
    return sum(len(pool.devices) for pool in stage.pools)


def _lines(plan: Plan) -> tuple[LedgerLine, ...]:
    stages = plan.stages
    prices = [each.value for stage in stages for each in stage.estimate.lines if each.what == PER_STEP]
    found = [
        _line(plan, STEP, "s", _step_seconds, "estimate of"),
        _samples(plan),
        _line(plan, GPU_SECONDS, "GPU-seconds", _device_seconds, "devices in pools, times the step, of"),
    ]
    if len(prices) == len(stages):
        by_name = dict(zip((stage.name for stage in stages), prices, strict=True))
        found.append(_line(plan, PER_STEP, "price", lambda stage: by_name[stage.name], "price per step of"))
    return tuple(found)


def _step_seconds(stage: StagePlan) -> float:
    return stage.estimate.step_seconds


def _device_seconds(stage: StagePlan) -> float:
    return _used(stage) * stage.estimate.step_seconds


def _line(plan: Plan, what: str, unit: str, value: Callable[[StagePlan], Number], origin: str) -> LedgerLine:
    """The figure of a step; of several stages the mean over their steps."""
    if len(plan.stages) == 1:
        (stage,) = plan.stages
        if what != GPU_SECONDS:
            return line(what, None, unit, "x", {"x": Given(value(stage), f"{origin} the stage")})
        inputs = {"n": Given(_used(stage), "devices in pools"), "s": Given(_step_seconds(stage), "step")}
        return line(what, None, unit, "n*s", inputs)
    inputs, terms, steps = _weights(plan)
    inputs |= {f"x{at}": Given(value(stage), f"{origin} {stage.name}") for at, stage in enumerate(plan.stages)}
    total = " + ".join(f"{step}*x{at}" for at, step in enumerate(terms))
    return line(what, None, unit, f"({total})/({steps})", inputs)


def _weights(plan: Plan) -> tuple[dict[str, Given], list[str], str]:
    """The steps of each stage: inputs, their names, and their sum."""
    inputs = {f"k{at}": Given(stage.run.steps, f"steps of {stage.name}") for at, stage in enumerate(plan.stages)}
    return inputs, list(inputs), " + ".join(inputs)


def _samples(plan: Plan) -> LedgerLine:
    """Samples of the run over its seconds."""
    if len(plan.stages) == 1:
        rate = plan.stages[0].estimate.samples_per_second
        return line(SAMPLES, None, "samples/s", "x", {"x": Given(rate, "estimate of the stage")})
    inputs, terms, _ = _weights(plan)
    for at, stage in enumerate(plan.stages):
        step = stage.graph.step
        inputs[f"m{at}"] = Given(step.prompts * step.samples_per_prompt, f"samples of a step of {stage.name}")
        inputs[f"s{at}"] = Given(stage.estimate.step_seconds, f"step of {stage.name}")
    made = " + ".join(f"{step}*m{at}" for at, step in enumerate(terms))
    spent = " + ".join(f"{step}*s{at}" for at, step in enumerate(terms))
    return line(SAMPLES, None, "samples/s", f"({made})/({spent})", inputs)
