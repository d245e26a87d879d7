"""In how many parts a stage's generation is handed on: of what `schedule.takes` allows, the shortest step.

Takes a placed stage; gives its program, and the placement with the decision. A part that is scored early saves a wait,
and costs what small calls cost; where the devices that score are what bounds the step, all at once is best.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from flowrl.compiler.emit.program import emit
from flowrl.compiler.emit.sessions import Parts
from flowrl.execution.expand import ratio_of
from flowrl.graph.graph import Graph
from flowrl.machine.cluster import Cluster
from flowrl.machine.shape import ModelShape
from flowrl.placement.request import Placement, PlacementRequest
from flowrl.placement.time.instructions import durations
from flowrl.plan.plan import Decision, Rejected, StageRun
from flowrl.program.program import InstructionKind, Program

SLIGHT = 1e-3
"""Of a step: more parts, or parts of more ops, must save more."""


@dataclass(frozen=True, slots=True)
class _Tried:
    name: str
    program: Program
    seconds: float


def emit_stage(
    graph: Graph,
    placement: Placement,
    run: StageRun,
    shapes: Mapping[str, ModelShape],
    request: PlacementRequest,
    cluster: Cluster,
) -> tuple[Program, Placement]:
    """The stage's program; a flow that allows parts gets one more decision."""
    if graph.schedule.takes == 1:
        return emit(graph, placement.pools, run, placement.memory, fits=placement.fits), placement
    tried: list[_Tried] = []
    for parts in _options(graph.schedule.takes):
        program = emit(graph, placement.pools, run, placement.memory, fits=placement.fits, parts=parts)
        if all(program != other.program for other in tried):
            taken = durations(graph, placement.pools, program, shapes, cluster, request=request)
            tried.append(_Tried(_name(program, parts), program, ratio_of(program, taken)[0]))
    best = tried[0]
    for other in tried[1:]:
        best = other if other.seconds < best.seconds * (1.0 - SLIGHT) else best
    decision = _decision(f"D{len(placement.decisions) + 1}", best, tried)
    return best.program, replace(placement, decisions=(*placement.decisions, decision))


def _options(most: int) -> Iterator[Parts]:
    """What changes least first."""
    yield Parts(1)
    for takes in range(2, most + 1):
        yield Parts(takes, on_devices=False)
        yield Parts(takes)


def _name(program: Program, parts: Parts) -> str:
    takes = max((i.firings for i in program.instructions if i.kind is InstructionKind.TAKE), default=1)
    if takes == 1:
        return "all at once"
    return f"{takes} parts" if parts.on_devices else f"{takes} parts for the host"


def _decision(id: str, best: _Tried, tried: list[_Tried]) -> Decision:
    others = sorted((each for each in tried if each is not best), key=lambda each: each.seconds)
    saved = 1.0 - best.seconds / max(tried[0].seconds, 1e-12)
    if not others:
        text = "no op elsewhere reads samples or groups, on devices that it does not leave"
    elif best is tried[0]:
        text = "no part shortens the step: what scores is what bounds it, or is hidden already"
    else:
        text = f"scoring overlaps generation, which saves {saved:.0%} of the step"
    return Decision(
        id=id,
        what="parts of generation",
        chosen=best.name,
        reason="fastest" if others else "only_option",
        text=text,
        rejected=tuple(_rejected(each, best) for each in others),
        override="schedule.takes",
    )


def _rejected(other: _Tried, best: _Tried) -> Rejected:
    more = other.seconds / max(best.seconds, 1e-12) - 1.0
    reason = "slower" if more > 0 else "not_preferred"
    return Rejected(option=other.name, reason=reason, delta=f"{more:+.1%} step time".replace("-", "−", 1))
