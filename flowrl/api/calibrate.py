"""Refits a profile to a run: its trace against its plan, and the lengths that it met."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import fields, replace

from flowrl.api.measure import rounded
from flowrl.compiler.lower.placement import lower_placement
from flowrl.diag.diagnostic import FlowError, diagnose
from flowrl.explain.calibration import Calibration, Moved, Row
from flowrl.explain.pairs import LEAST_REPEATS, ChromeTrace, Event, Pair, events_of, pairs_of
from flowrl.explain.refit import refit, relevant
from flowrl.graph.graph import Kind
from flowrl.graph.params import GenerateParams
from flowrl.machine.profile import (
    PROFILE,
    Constant,
    DeviceRates,
    Measured,
    Profile,
    free_constants,
    value_of,
    with_constants,
)
from flowrl.machine.shape import ModelShape
from flowrl.placement.cost.workload import Workload
from flowrl.placement.request import Assumption, PlacementRequest
from flowrl.placement.shapes import handed_on, shapes_of
from flowrl.placement.time.instructions import duration_lines, seconds_of
from flowrl.plan.plan import Plan, StagePlan
from flowrl.spec import load

FREEDOM = 100.0
"""A constant of a device that the profile gives no bounds may move by this factor either way."""
OF_A_DEVICE = (
    "train",
    "forward",
    "traffic",
    "decode",
    "host",
    "layer_seconds",
    "micro_batch_seconds",
    "row_seconds",
    "weights_seconds",
    "eager_layer_seconds",
    "decode_layer_seconds",
    "decode_step_seconds",
    "decode_sequence_seconds",
    "decode_traffic",
)
OF_ALL = ("fixed.sync_seconds", "fixed.disk")
ELSEWHERE = ("lengths.", "backend.")
"""Lengths are for `assume:`, and one run cannot tell a backend's share from its device's."""
SMALLEST = {"traffic": 0.1, "micro_batch_seconds": 1e-4, "decode_sequence_seconds": 1e-6, "row_seconds": 1e-6}
"""What a constant that is 0 starts from, since constants move by factors."""


@dataclass(frozen=True, slots=True)
class _Stage:
    """A stage of the run with what its durations are worked out from."""

    plan: StagePlan
    pairs: tuple[Pair, ...]
    shapes: Mapping[str, ModelShape]
    request: PlacementRequest
    assume: dict[str, dict[str, Any]]


def calibrate(run_folder: str | Path, base: Profile = PROFILE) -> tuple[Calibration, Profile]:
    """What a run's trace says of its plan, and `base` with the constants that it identifies refitted.

    Constants are fitted to every other repeat of each instruction and judged by the others. Raises FlowError: FR0907
    for a folder that is not a run's, FR0723 for one without a trace of at least four repeats.
    """
    from flowrl.runtime.jsonl import read_lines
    from flowrl.runtime.logs import METRICS
    from flowrl.runtime.runfile import TRACE, load_run

    folder = Path(run_folder)
    plan, _ = load_run(folder)
    events = events_of(plan, read_trace(folder / TRACE))
    lines = list(read_lines(folder / METRICS))
    stages = _stages(plan, folder, events, lines)
    if not any(stage.pairs for stage in stages):
        reason = f"no instruction worked {LEAST_REPEATS} times after its first step"
        raise FlowError(diagnose("FR0723", folder=folder, reason=reason))
    return _refitted(plan, stages, base, max(event.step for event in events))


def read_trace(path: Path) -> ChromeTrace:
    """The trace of a run. Raises FlowError FR0723 if it cannot be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=ChromeTrace)
    except OSError as error:
        reason = f"{path.name}: {(error.strerror or str(error)).lower()}"
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        reason = f"{path.name}: {error}"
    raise FlowError(diagnose("FR0723", folder=path.parent, reason=reason))


def _stages(plan: Plan, folder: Path, events: Sequence[Event], lines: Sequence[Mapping[str, Any]]) -> list[_Stage]:
    requests = _requests(plan, folder)
    earlier: dict[str, ModelShape] = {}
    found: list[_Stage] = []
    for stage in plan.stages:
        shapes = shapes_of(stage.graph, plan.folder, earlier)
        earlier |= handed_on(stage.name, stage.graph, shapes)
        pairs = pairs_of(stage, events)
        assume = {**_lengths(stage, lines), **_functions(stage, pairs)}
        request = _assumed(requests[stage.name], assume, folder)
        found.append(_Stage(stage, pairs, shapes, request, assume))
    return found


def _requests(plan: Plan, folder: Path) -> dict[str, PlacementRequest]:
    """What the flow in the run's folder asks of placement; nothing where a plan file was run."""
    try:
        spec = load(folder / "flow.yaml")
        return {stage.name: lower_placement(spec, index) for index, stage in enumerate(spec.stages)}
    except FlowError:
        return {stage.name: PlacementRequest() for stage in plan.stages}


def _lengths(stage: StagePlan, lines: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Mean and 99th percentile of responses, as the run's metrics have them, over all steps of the stage."""
    found: dict[str, dict[str, Any]] = {}
    own = [line for line in lines if line.get("stage") == stage.name]
    for op in stage.graph.ops:
        if not isinstance(op.params, GenerateParams):
            continue
        label = f"@{op.label}" if op.label else ""
        means = [line[name] for line in own if (name := f"{op.role}.response_tokens{label}") in line]
        tails = [line[name] for line in own if (name := f"{op.role}.response_tokens_p99{label}") in line]
        if means:
            said: dict[str, Any] = {"mean": rounded(statistics.fmean(means))}
            said |= {"p99": rounded(max(statistics.fmean(means), statistics.median(tails)))} if tails else {}
            found[op.id] = {"response_tokens": said}
    return found


def _functions(stage: StagePlan, pairs: Iterable[Pair]) -> dict[str, dict[str, Any]]:
    """Seconds of a call of the user's functions: they are of the flow, and no constant of a machine."""
    found: dict[str, dict[str, Any]] = {}
    kinds = {role.name: role.kind for role in stage.graph.roles}
    roles = {op.id: op.role for op in stage.graph.ops}
    for pair in pairs:
        work = next((each for each in stage.estimate.work if pair.instructions[0] in each.instructions), None)
        if work is None or pair.name not in roles or kinds[roles[pair.name]] is Kind.DATA:
            continue
        (line, *others) = work.lines
        if line.what == "host work" and not others and float(line.inputs["s"]) > 0:
            calls = line.value / float(line.inputs["s"])
            found[pair.name] = {"seconds": rounded(pair.measured / calls)}
    return found


def _assumed(request: PlacementRequest, assume: Mapping[str, Mapping[str, Any]], folder: Path) -> PlacementRequest:
    """The request with what the run has shown in the place of what was assumed."""
    made = dict(request.assume)
    for id, said in assume.items():
        tokens = said.get("response_tokens", {})
        changes: dict[str, Any] = {"origin": f"run {folder.name}"}
        if tokens:
            changes |= {"response_tokens": tokens["mean"], "response_tokens_p99": tokens.get("p99")}
        if "seconds" in said:
            changes["seconds"] = said["seconds"]
        made[id] = replace(made.get(id, Assumption()), **changes)
    return replace(request, assume=made)


def _seconds(plan: Plan, stages: Sequence[_Stage], profile: Profile) -> dict[str, float]:
    """Modelled seconds by stage and op; of several firings their mean."""
    found: dict[str, float] = {}
    for stage in stages:
        own = stage.plan
        request = replace(stage.request, profile=profile)
        lines = duration_lines(
            own.graph, own.pools, own.programs, stage.shapes, plan.cluster, request=request, decisions=own.decisions
        )
        by_id = seconds_of(lines)
        found |= {pair.key: statistics.fmean(by_id[id] for id in pair.instructions) for pair in stage.pairs}
    return found


def _refitted(plan: Plan, stages: Sequence[_Stage], base: Profile, steps: int) -> tuple[Calibration, Profile]:
    functions = {
        f"{stage.plan.name}/{id}" for stage in stages for id, said in stage.assume.items() if "seconds" in said
    }
    pairs = {pair.key: pair for stage in stages for pair in stage.pairs}
    free = constants(plan, base)
    start = with_constants(base, {each.path: each.prior for each in free})
    ruled = {key for stage in stages for key in _ruled(stage)}
    measured = {key: pair.measured for key, pair in pairs.items() if key not in functions | ruled}

    def seconds(values: Mapping[str, float]) -> dict[str, float]:
        made = _seconds(plan, stages, with_constants(start, values))
        return {key: made[key] for key in measured}

    moving = relevant(free, seconds)
    values = {path: rounded(value) for path, value in refit(moving, seconds, measured).items()}
    refitted = with_constants(base, values)
    rows = _rows(stages, _seconds(plan, stages, refitted), functions, ruled)
    judged = [row for row in rows if not row.is_ruled] or rows
    whole = sum(row.measured for row in judged)
    before = sum(abs(row.before - row.measured) for row in judged) / whole
    after = sum(abs(row.after - row.measured) for row in judged) / whole
    moved = tuple(
        Moved(
            path=each.path,
            before=value_of(base, each.path),
            after=values[each.path],
            at_bound=not 1.01 * each.low < values[each.path] < 0.99 * each.high,
        )
        for each in moving
        if abs(values[each.path] / max(value_of(base, each.path), 1e-12) - 1.0) > 0.01
    )
    result = Calibration(
        rows=rows,
        moved=moved,
        assume={id: said for stage in stages for id, said in stage.assume.items()},
        error_before=before,
        error_after=after,
        steps=steps,
    )
    return result, _noted(refitted, result, plan.name)


def _ruled(stage: _Stage) -> Iterable[str]:
    """Ops on models whose responses' tokens follow a rule and are not known from the run, such as those of a data set:
    their durations say nothing of a constant."""
    work = Workload(stage.plan.graph, stage.shapes, stage.request)
    ops = {op.id: op for op in stage.plan.graph.ops}
    for pair in stage.pairs:
        op = ops.get(pair.name)
        if op is None or stage.plan.graph.role(op.role).model is None:
            continue
        if work.lengths(op).response_mean.origin.startswith("rule:"):
            yield pair.key


def _rows(
    stages: Sequence[_Stage], after: Mapping[str, float], functions: set[str], ruled: set[str]
) -> tuple[Row, ...]:
    found: list[Row] = []
    for stage in stages:
        told = stage.plan.estimate.durations
        for pair in stage.pairs:
            before = statistics.fmean(told[id] for id in pair.instructions)
            took, now = max(pair.judged, 1e-9), after[pair.key]
            found.append(
                Row(
                    stage=stage.plan.name,
                    name=pair.name,
                    repeats=len(pair.fitted) + len(pair.held),
                    before=before,
                    measured=took,
                    p90=pair.p90,
                    after=now,
                    error_before=abs(before / took - 1.0),
                    error_after=abs(now / took - 1.0),
                    is_assumed=pair.key in functions,
                    is_ruled=pair.key in ruled,
                )
            )
    return tuple(found)


def constants(plan: Plan, profile: Profile) -> tuple[Constant, ...]:
    """What may move: the constants that the profile frees, and those of the run's devices, each from its value in the
    profile."""
    freed = {each.path: each for each in free_constants(profile) if not each.path.startswith(ELSEWHERE)}
    used = {pool.device for stage in plan.stages for pool in stage.pools if pool.devices}
    sections = [
        name
        for device in sorted(used)
        for name in (_name(profile, device), *(name for name in profile.device if name.startswith(f"{device}/")))
    ]
    paths = [f"device.{name}.{key}" for name in sections for key in OF_A_DEVICE]
    found: list[Constant] = []
    for path in dict.fromkeys((*paths, *OF_ALL, *freed)):
        try:
            value = value_of(profile, path)
        except KeyError:
            continue
        value = value or SMALLEST.get(path.rpartition(".")[2], 0.0)
        if value <= 0:
            continue
        bounds = freed.get(path)
        low, high = (value / FREEDOM, value * FREEDOM) if bounds is None else (bounds.low, bounds.high)
        low = low or value / FREEDOM
        found.append(Constant(path=path, low=min(low, value), high=max(high, value), prior=value))
    return tuple(found)


def _name(profile: Profile, device: str) -> str:
    """The section of a device: its own, if all rates stand there, else its class."""
    own = profile.device.get(device, {})
    asked = {field.name for field in fields(DeviceRates) if field.required}
    return device if asked <= set(own) else "gpu"


def _noted(profile: Profile, result: Calibration, name: str) -> Profile:
    """Says of each moved constant where it comes from, and how far the profile is off."""
    how = f"refitted to a run of {name}, {result.steps} steps"
    notes = {
        each.path: Measured(how=how, spread=rounded(result.error_after), repeats=result.steps) for each in result.moved
    }
    return replace(
        profile,
        origin=f"{profile.origin}; {how}",
        measured={**profile.measured, **notes},
        error=rounded(max(result.error_after, 0.05)),
    )
