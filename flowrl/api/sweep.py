"""Plans a flow at many points: clusters of several sizes and devices, and values of its keys. One after another."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path

from msgspec.structs import replace

from flowrl.api.compile import check_spec, compile_spec
from flowrl.api.machine import cluster_of
from flowrl.api.profile import load_profile
from flowrl.compiler.lower.placement import lower_placement
from flowrl.diag.diagnostic import Diagnostic, FlowError, Help, diagnose
from flowrl.diag.near import near_names
from flowrl.diag.span import Span
from flowrl.explain.sweep import Point, Sweep, point_of, refused, with_front
from flowrl.machine.cluster import Cluster, NodeGroup
from flowrl.machine.profile import Profile
from flowrl.machine.resize import resized, shorthand_of
from flowrl.machine.shorthand import device_card
from flowrl.spec import load
from flowrl.spec.axes import GPU, GPUS, SET, Axis, Value, read_axes, read_prices
from flowrl.spec.flow import FlowSpec

MOST_POINTS = 1000
Prices = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class SweepMoment:
    """How far a sweep is."""

    phase: str
    """The point that is planned next, in words; empty at the end."""
    done: int
    phases: int
    left_seconds: float | None
    """None before the first point is done."""


@dataclass(frozen=True, slots=True)
class _Job:
    """What all points have in common."""

    axes: tuple[Axis, ...]
    cluster: str | None
    base: Cluster
    """Of the first flow."""
    prices: Prices
    profile: Profile | None
    objective: str | None


def sweep(
    file: str | Path,
    gpus: Sequence[str] = (),
    gpu: Sequence[str] = (),
    sets: Sequence[str] = (),
    *,
    objective: str | None = None,
    prices: Sequence[str] = (),
    cluster: str | None = None,
    profile: str | Path | None = None,
    tell: Callable[[SweepMoment], None] | None = None,
) -> Sweep:
    """Every combination of the values that the flags give, planned. `gpus`: `8,16`; `gpu`: `H100-80G,H20`, each with
    `GROUP=` before it where the cluster has groups; `sets`: `KEY=V1,V2`; `prices`: `H20=1.2` an hour. `cluster` stands
    for the flow's own. Ctrl-C ends it with what is done by then.

    A combination that does not fit or is refused is a point like any other. Raises FlowError for what is wrong with
    every point: flags (FR0740 to FR0744, FR0511) and a flow that none of its combinations mends.
    """
    axes, asked = read_axes(gpus, gpu, sets), read_prices(prices)
    size = prod(len(axis.values) for axis in axes)
    if size > MOST_POINTS:
        factors = " · ".join(str(len(axis.values)) for axis in axes if len(axis.values) > 1)
        raise FlowError(diagnose("FR0744", points=size, limit=MOST_POINTS, product=factors))
    flows = _Flows(Path(file), [axis for axis in axes if axis.flag == SET])
    spec = flows.first()
    base = cluster_of(spec, cluster)
    _check_machine(axes, base)
    rates = None if profile is None else load_profile(profile)
    job = _Job(axes, cluster, base, _prices(axes, base, asked), rates, objective)
    points, stopped = _planned(job, flows, tell, size)
    marked, cost, per = with_front(points)
    return Sweep(
        file=str(file),
        name=spec.document.name,
        objective=objective or lower_placement(spec, 0).objective,
        axes={axis.title: tuple(value.text for value in axis.values) for axis in _varying(axes)},
        fixed=tuple(_flag(axis, axis.values[0]) for axis in axes if axis.flag == SET and len(axis.values) == 1),
        cost=cost,
        per=per,
        points=marked,
        planned=size,
        interrupted=stopped,
    )


def _varying(axes: Sequence[Axis]) -> list[Axis]:
    """What a column of the table is for."""
    return [axis for axis in axes if axis.flag != SET or len(axis.values) > 1]


def _flag(axis: Axis, value: Value) -> str:
    return f"{axis.name}={value.text}"


# -- before the first point -------------------------------------------------------------------------------------------


class _Flows:
    """The flow with each combination of its keys, read and checked once."""

    def __init__(self, file: Path, axes: Sequence[Axis]) -> None:
        self.file, self.axes = file, axes
        self._known: dict[tuple[str, ...], FlowSpec | FlowError] = {}

    def first(self) -> FlowSpec:
        """The first that has no fault. Raises the faults of the very first if every one has some."""
        fault: FlowError | None = None
        for values in product(*(axis.values for axis in self.axes)):
            found = self.of([_flag(axis, value) for axis, value in zip(self.axes, values, strict=True)])
            if not isinstance(found, FlowError):
                return found
            fault = fault or found
        assert fault is not None
        raise fault

    def of(self, sets: Sequence[str]) -> FlowSpec | FlowError:
        found = self._known.get(tuple(sets))
        if found is None:
            found = self._known[tuple(sets)] = self._checked(sets)
        return found

    def _checked(self, sets: Sequence[str]) -> FlowSpec | FlowError:
        try:
            spec = load(self.file, sets)
        except FlowError as error:
            return error
        checked = check_spec(spec)
        return spec if len(checked.graphs) == len(spec.stages) else FlowError(checked.diagnostics)


def _check_machine(axes: Sequence[Axis], base: Cluster) -> None:
    """Raises FlowError for axes of the cluster that are none of it, and for unknown devices."""
    report: list[Diagnostic] = []
    groups = {group.name: group for group in base.groups}
    swaps = {axis.name for axis in axes if axis.flag == GPU}
    for axis in (axis for axis in axes if axis.flag != SET):
        fault = _group_fault(axis, list(groups))
        group = groups.get(axis.name, base.groups[0])
        if fault is None and axis.flag == GPUS and group.device.is_cpu and axis.name not in swaps:
            fault = diagnose("FR0743", axis.place, cluster=base.name)
        report += [] if fault is None else [fault]
        for value in axis.values if axis.flag == GPU else ():
            try:
                device_card(value.text, value.span, value.text)
            except FlowError as error:
                report.extend(error.diagnostics)
    if report:
        raise FlowError(report)


def _group_fault(axis: Axis, known: list[str]) -> Diagnostic | None:
    """FR0741 or FR0742. A cluster of one group needs no name."""
    told = ", ".join(f"`{name}`" for name in known)
    if axis.name in known or (not axis.name and len(known) == 1):
        return None
    if not axis.name:
        values = ",".join(value.text for value in axis.values)
        return diagnose("FR0741", axis.place, flag=axis.flag, first=known[0], values=values, known=told)
    near = near_names(axis.name, known)
    helps = [Help(text=f"a group with a near name exists: `{near[0]}`")] if near else []
    return diagnose("FR0742", axis.place, helps=helps, name=axis.name, known=told)


def _prices(axes: Sequence[Axis], base: Cluster, asked: Mapping[str, tuple[float, Span]]) -> Prices:
    """By name of the catalogue. Raises FlowError: FR0511 for an unknown device, FR0740 for one that no point has."""
    cards = {name: device_card(name, span, name).device.name for name, (_, span) in asked.items()}
    swept = [
        device_card(value.text, value.span, value.text) for axis in axes if axis.flag == GPU for value in axis.values
    ]
    there = {group.device.name for group in base.groups} | {card.device.name for card in swept}
    report = [
        diagnose("FR0740", asked[name][1], problem=f"no point of the sweep has `{device}`")
        for name, device in cards.items()
        if device not in there
    ]
    if report:
        raise FlowError(report)
    return {cards[name]: price for name, (price, _) in asked.items()}


# -- the points -------------------------------------------------------------------------------------------------------


def _planned(
    job: _Job, flows: _Flows, tell: Callable[[SweepMoment], None] | None, size: int
) -> tuple[list[Point], bool]:
    """The points in their order, and whether Ctrl-C came before the last."""
    points: list[Point] = []
    began = time.monotonic()
    try:
        for values in product(*(axis.values for axis in job.axes)):
            settings = _settings(job.axes, values)
            if tell is not None:
                done = len(points)
                left = (time.monotonic() - began) / done * (size - done) if done else None
                words = ", ".join(f"{name} {value}" for name, value in settings.items())
                tell(SweepMoment(words or "the flow as it is", done, size, left))
            points.append(_point(job, flows, values, settings))
    except KeyboardInterrupt:
        return points, True
    if tell is not None:
        tell(SweepMoment("", size, size, 0.0))
    return points, False


def _settings(axes: Sequence[Axis], values: Sequence[Value]) -> dict[str, str]:
    varying = {axis.title for axis in _varying(axes)}
    return {axis.title: value.text for axis, value in zip(axes, values, strict=True) if axis.title in varying}


def _point(job: _Job, flows: _Flows, values: Sequence[Value], settings: dict[str, str]) -> Point:
    chosen = list(zip(job.axes, values, strict=True))
    spec = flows.of([_flag(axis, value) for axis, value in chosen if axis.flag == SET])
    name: str | None = None
    devices: int | None = None
    try:
        if isinstance(spec, FlowError):
            raise spec
        machine = _machine(job, cluster_of(spec, job.cluster), chosen)
        name, devices = machine.name, machine.device_count
        plan = compile_spec(spec, machine, profile=job.profile, objective=job.objective)
    except FlowError as error:
        return refused(error.diagnostics, settings, name, devices)
    return point_of(plan, settings, name)


def _machine(job: _Job, base: Cluster, chosen: Sequence[tuple[Axis, Value]]) -> Cluster:
    """The flow's cluster with each swept group in its size and of its device. Raises FlowError FR0512, FR0031."""
    groups = tuple(_swept(group, chosen, job.prices) for group in base.groups)
    if groups == base.groups:
        return base
    return replace(base, name=shorthand_of(groups[0]) if len(groups) == 1 else base.name, groups=groups)


def _swept(group: NodeGroup, chosen: Sequence[tuple[Axis, Value]], prices: Prices) -> NodeGroup:
    own = [(axis, value) for axis, value in chosen if axis.flag != SET and axis.name in ("", group.name)]
    kind = next((value for axis, value in own if axis.flag == GPU), None)
    count = next((value for axis, value in own if axis.flag == GPUS), None)
    card = None if kind is None else device_card(kind.text, kind.span, kind.text)
    made = resized(group, card, None if count is None else int(count.text), None if count is None else count.span)
    price = prices.get(made.device.name)
    return made if price is None else replace(made, price_per_gpu_hour=price)
