"""In how many parts a stage's generation is handed on: of what `schedule.takes` allows, the shortest step.

Takes a placed stage; gives its program, and the placement with the decisions. A part that is scored early saves a wait,
and costs what small calls cost; where the devices that score are what bounds the step, all at once is best. With
`minibatches: arrival` updates that begin with the first parts are tried too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from msgspec.structs import replace

from flowrl.compiler.emit.program import emit
from flowrl.compiler.emit.sessions import Parts, late_updates
from flowrl.execution.expand import ratio_of
from flowrl.graph.graph import Graph
from flowrl.machine.cluster import Cluster
from flowrl.machine.shape import ModelShape
from flowrl.placement.layouts import change_text
from flowrl.placement.request import Placement, PlacementRequest
from flowrl.placement.search import StepInParts
from flowrl.placement.time.instructions import durations
from flowrl.plan.plan import Decision, Pool, Rejected, StageRun
from flowrl.program.program import InstructionKind, Program

SLIGHT = 1e-3
"""Of a step: more parts, or parts of more ops, must save more."""


@dataclass(frozen=True, slots=True)
class _Tried:
    name: str
    program: Program
    seconds: float
    parts: Parts
    early: bool
    """Whether updates begin before the last part."""


def emit_stage(
    graph: Graph,
    placement: Placement,
    run: StageRun,
    shapes: Mapping[str, ModelShape],
    request: PlacementRequest,
    cluster: Cluster,
) -> tuple[Program, Placement]:
    """The stage's program; a flow that allows parts gets one more decision, and another one if it lets minibatches be
    made of whoever is done first."""
    schedule = graph.schedule
    if schedule.takes == 1:
        return emit(graph, placement.pools, run, placement.memory, fits=placement.fits), placement
    tried: list[_Tried] = []
    for parts in _options(schedule.takes, updates=schedule.minibatches == "arrival"):
        program = emit(graph, placement.pools, run, placement.memory, fits=placement.fits, parts=parts)
        if all(program != other.program for other in tried):
            taken = durations(graph, placement.pools, program, shapes, cluster, request=request)
            early = any(i.rows.arrived for i in program.instructions)
            tried.append(_Tried(_name(program, parts, early), program, ratio_of(program, taken)[0], parts, early))
    best = _best(tried)
    count = len(placement.decisions)
    decisions = [_decision(f"D{count + 1}", best, tried)]
    if schedule.minibatches == "arrival":
        decisions.append(_minibatches(f"D{count + 2}", graph, best, tried))
    return best.program, replace(placement, decisions=(*placement.decisions, *decisions))


def step_in_parts(
    graph: Graph, run: StageRun, shapes: Mapping[str, ModelShape], request: PlacementRequest, cluster: Cluster
) -> StepInParts | None:
    """Seconds of a step on given pools, in as many parts as the flow allows: what a search compares the best few ways
    by. None for a flow that allows no parts."""
    most, updates = graph.schedule.takes, graph.schedule.minibatches == "arrival"
    if most == 1:
        return None
    options = [Parts(most, on_devices=False), Parts(most), *([Parts(most, updates=True)] if updates else [])]

    def seconds(pools: Sequence[Pool]) -> float:
        programs: list[Program] = []
        for parts in options:
            program = emit(graph, pools, run, parts=parts)
            if program not in programs and any(i.kind is InstructionKind.TAKE for i in program.instructions):
                programs.append(program)
        timed = (durations(graph, pools, each, shapes, cluster, request=request) for each in programs)
        return min((ratio_of(each, taken)[0] for each, taken in zip(programs, timed, strict=True)), default=inf)

    return seconds


def _best(tried: Sequence[_Tried]) -> _Tried:
    best = tried[0]
    for other in tried[1:]:
        best = other if other.seconds < best.seconds * (1.0 - SLIGHT) else best
    return best


def _options(most: int, *, updates: bool) -> Iterator[Parts]:
    """What changes least first."""
    yield Parts(1)
    for takes in range(2, most + 1):
        yield Parts(takes, on_devices=False)
        yield Parts(takes)
    if updates:
        yield from (Parts(takes, updates=True) for takes in range(2, most + 1))


def _name(program: Program, parts: Parts, early: bool) -> str:
    takes = max((i.firings for i in program.instructions if i.kind is InstructionKind.TAKE), default=1)
    if takes == 1:
        return "all at once"
    if early:
        return f"{takes} parts, updates as they arrive"
    return f"{takes} parts" if parts.on_devices else f"{takes} parts for the host"


def _decision(id: str, best: _Tried, tried: Sequence[_Tried]) -> Decision:
    others = sorted((each for each in tried if each is not best), key=lambda each: each.seconds)
    saved = 1.0 - best.seconds / max(tried[0].seconds, 1e-12)
    if not others:
        text = "no op elsewhere reads samples or groups, on devices that it does not leave"
    elif best is tried[0]:
        text = "no part shortens the step: what scores is what bounds it, or is hidden already"
    else:
        what = "scoring and updates overlap" if best.early else "scoring overlaps"
        text = f"{what} generation, which saves {saved:.0%} of the step"
    return Decision(
        id=id,
        what="parts of generation",
        chosen=best.name,
        reason="fastest" if others else "only_option",
        text=text,
        rejected=tuple(_rejected(each, best) for each in others),
        override="schedule.takes",
    )


def _minibatches(id: str, graph: Graph, best: _Tried, tried: Sequence[_Tried]) -> Decision:
    """Which prompts updates train on, and why those wait that do."""
    other = [each for each in tried if each.early is not best.early]
    against = _best(other) if other else None
    late = _late(graph, best, tried)
    waits = "; ".join(f"{op} waits for the last part: {why}" for op, why in late.items())
    if best.early:
        early = dict.fromkeys(i.op or "" for i in best.program.instructions if i.rows.arrived)
        verb = "begins" if len(early) == 1 else "begin"
        text = f"{' and '.join(early)} {verb} with the first part, on the prompts that are done first"
    elif against is not None:
        text = "no update that begins before the last part shortens the step"
    else:
        text = "" if waits else "no update follows a call of generate that can be handed on in parts"
    return Decision(
        id=id,
        what="minibatches",
        chosen="arrival" if best.early else "fixed",
        reason="fastest" if against is not None else "only_option",
        text="; ".join(each for each in (text, waits) if each),
        rejected=() if against is None else (replace(_rejected(against, best), option=_order(against)),),
        override="schedule.minibatches",
    )


def _order(tried: _Tried) -> str:
    return "arrival" if tried.early else "fixed"


def _late(graph: Graph, best: _Tried, tried: Sequence[_Tried]) -> dict[str, str]:
    """Updates that wait, in the parts that were chosen, or in as many as leave fewest waiting."""
    streams = tried[0].program.streams
    if best.early:
        return late_updates(graph, streams, best.parts)
    found = [late_updates(graph, streams, Parts(takes)) for takes in range(graph.schedule.takes, 1, -1)]
    return min(found, key=len) if found else {}


def _rejected(other: _Tried, best: _Tried) -> Rejected:
    more = other.seconds / max(best.seconds, 1e-12) - 1.0
    reason = "slower" if more > 0 else "not_preferred"
    return Rejected(option=other.name, reason=reason, delta=f"{change_text(more, 1)} step time")
