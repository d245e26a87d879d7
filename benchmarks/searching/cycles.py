"""The section of the steady state: the simulated period beside the maximum cycle ratio, on random programs.

Programs are emitted from random flows on random pools, with random roles leaving their devices and random seconds. The
period is (T(N + K) - T(N)) / K of the executor on the virtual clock, N after the transient and K the steps after which
every start comes again; ratios are the product's and two others that share nothing with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

from benchmarks.searching.blocks import set_partitions
from benchmarks.searching.instances import instance
from benchmarks.searching.outcome import Outcome, Progress
from benchmarks.searching.presets import PRESETS, given
from benchmarks.searching.ratios import by_circles, by_karp, waits
from flowrl.compiler.emit.program import emit
from flowrl.compiler.lower.graph import lower_stage
from flowrl.compiler.passes.pipeline import run_passes
from flowrl.execution.expand import ratio_of
from flowrl.execution.simulate import simulate
from flowrl.execution.steady import plain_steps
from flowrl.graph.graph import Graph
from flowrl.placement.cost.placed import needs_devices, sides
from flowrl.plan.plan import Layout, Pool, RolePlacement, StageRun
from flowrl.program.program import Program
from flowrl.spec import load

SEED = 6
WANTED, QUICK = 500, 25
SAME = 1e-9
MOST_STEPS = 4096
EXAMPLES = tuple(sorted((Path(__file__).resolve().parents[2] / "examples/flows").glob("*.yaml")))


@dataclass(frozen=True)
class Checked:
    name: str
    nodes: int
    ours: float
    karp: float
    circles: float | None
    """None where there are too many to look at."""
    period: float | None
    """None where no period showed within MOST_STEPS."""
    steps: int

    @property
    def worst(self) -> float:
        """The largest relative difference to the product's ratio."""
        others = [self.karp, *(each for each in (self.circles, self.period) if each is not None)]
        return max(abs(each / self.ours - 1) for each in others)


def section(*, quick: bool = False) -> Outcome:
    outcome, found = Outcome("cycles"), list[Checked]()
    wanted, progress = QUICK if quick else WANTED, Progress("cycles")
    for name, program, seconds in programs(wanted):
        found.append(checked(name, program, seconds))
        progress.tell(len(found), wanted)
    _tell(outcome, found, wanted)
    return outcome


def programs(wanted: int) -> Iterator[tuple[str, Program, Mapping[str, float]]]:
    """Of every fifth the graph is a preset's or an example's, of the others an instance's."""
    known = [*EXAMPLES, *PRESETS]
    for number in range(wanted):
        draw = Random(f"{SEED}-{number}")
        name, graph = _known(draw, known[number // 5 % len(known)]) if number % 5 == 0 else _random(number)
        program = emit(graph, _pools(draw, graph), StageRun(steps=2))
        yield f"{number} {name}", program, _seconds(draw, program)


def _random(number: int) -> tuple[str, Graph]:
    return "instance", instance(SEED, number).graph


def _known(draw: Random, flow: Path | str) -> tuple[str, Graph]:
    """A preset, or a stage of an example."""
    if isinstance(flow, str):
        return flow, given(flow, "7B", 8).graph
    spec = load(flow)
    stage = draw.randrange(len(spec.stages))
    return f"{flow.stem} {stage}", run_passes(lower_stage(spec, stage))[0]


def _pools(draw: Random, graph: Graph) -> list[Pool]:
    """A set partition at random that keeps the sides of an interaction apart, half of the time that of a pool for each
    role, where weights may bind; and a host with a lane for each role."""
    roles = [role.name for role in graph.roles if needs_devices(role)]
    away = [role.name for role in graph.roles if not needs_devices(role)]
    apart = sides(graph)
    legal = [p for p in set_partitions(roles) if all(len({*own} & {*side}) < 2 for own in p for side in apart)]
    pools = [
        Pool(
            name=own[0],
            devices=(own[0],),
            device="",
            roles=tuple(RolePlacement(role=r, layout=Layout(), offloaded=draw.random() < 0.5) for r in own),
        )
        for own in (legal[-1] if draw.random() < 0.5 else draw.choice(legal))
    ]
    host = tuple(RolePlacement(role=role, layout=Layout()) for role in away)
    return (
        [*pools, Pool(name="host", devices=(), device="host", roles=host, slots=max(2, len(away)))] if away else pools
    )


def _seconds(draw: Random, program: Program) -> dict[str, float]:
    """From milliseconds to minutes, or all of one size, when circles of several steps bind; some nothing at all. What
    works only every k steps takes none in the plain step."""
    found, low = dict[str, float](), draw.choice((-3.0, 1.7))
    for i in program.instructions:
        seconds = 0.0 if draw.random() < 0.1 else 10 ** draw.uniform(low, 2)
        found[i.id] = seconds if i.every_steps == 1 else 0.0
    if not any(found.values()):
        found[next(i.id for i in program.instructions if i.every_steps == 1)] = 1.0
    return found


def checked(name: str, program: Program, seconds: Mapping[str, float]) -> Checked:
    count, arcs = waits(program, seconds)
    ours, _ = ratio_of(program, seconds)
    circles = by_circles(arcs)
    period, steps = simulated(program, seconds)
    return Checked(name, count, ours, by_karp(count, arcs), None if circles is None else circles[0], period, steps)


def simulated(program: Program, seconds: Mapping[str, float]) -> tuple[float | None, int]:
    """Mean seconds of a step in the period that the last quarter of some steps shows, and K."""
    plain, steps = plain_steps(program), 32
    while steps <= MOST_STEPS:
        starts: dict[str, list[float]] = {}
        for span in simulate(plain, seconds, steps).spans:
            starts.setdefault(span.instruction, []).append(span.start_seconds)
        last = steps - steps // 4
        scale = max(own[-1] for own in starts.values()) or 1.0
        for period in range(1, steps // 4):
            shifts = [own[at] - own[at - period] for own in starts.values() for at in range(last, steps)]
            if max(shifts) - min(shifts) <= 1e-12 * scale:
                return shifts[0] / period, period
        steps *= 2
    return None, 0


def _tell(outcome: Outcome, found: list[Checked], wanted: int) -> None:
    worst = max(found, key=lambda each: each.worst)
    none = [each for each in found if each.period is None]
    wrong = [each for each in found if each.worst > SAME]
    periods = {steps: sum(each.steps == steps for each in found) for steps in sorted({each.steps for each in found})}
    counted = sum(each.circles is not None for each in found)
    outcome.lines += [
        f"{len(found)} programs of {min(e.nodes for e in found)} to {max(e.nodes for e in found)} nodes; "
        f"K: {', '.join(f'{steps} in {count}' for steps, count in periods.items() if steps)}",
        f"every simple circle looked at in {counted} of them, Karp's maximum cycle mean in all",
    ]
    for each in [*wrong, *none][:8]:
        others = f"Karp {each.karp:.12g}, circles {each.circles}, period {each.period}"
        outcome.lines.append(f"  {each.name}: ratio {each.ours:.12g}, {others}")
    outcome.rows += [
        {"program": e.name, "nodes": e.nodes, "ratio": e.ours, "karp": e.karp, "circles": e.circles, "period": e.period}
        for e in found
    ]
    outcome.bar("largest relative difference", f"{worst.worst:.1e} ({worst.name})", f"<= {SAME:.0e}", not wrong)
    outcome.bar("programs whose period shows", len(found) - len(none), f"{wanted}", len(found) - len(none) >= wanted)
