"""All measurements in their order. What was measured stays when Ctrl-C ends the rest.

Takes a machine and who is told; gives figures and what is missing. Writes no file.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from flowrl.runtime.measure.collectives import collectives
from flowrl.runtime.measure.decoding import decoding, decoding_with_vllm
from flowrl.runtime.measure.figures import Figure
from flowrl.runtime.measure.handover import handover
from flowrl.runtime.measure.layers import layers
from flowrl.runtime.measure.machine import Machine, use_all_cores
from flowrl.runtime.measure.memory import copies, disk
from flowrl.runtime.measure.products import products

Work = Callable[[Machine, bool, Mapping[str, float]], list[Figure]]


@dataclass(frozen=True, slots=True)
class Phase:
    name: str
    """In words, for people."""
    work: Work
    seconds: float
    """What it takes on an idle machine of two cores; only their ratios matter."""
    quick_seconds: float


PHASES: tuple[Phase, ...] = (
    Phase("matrix products", lambda machine, quick, _: products(machine, quick), 6.0, 0.7),
    Phase("copies of memory", lambda machine, quick, _: copies(machine, quick), 2.0, 0.6),
    Phase("writes to disk", lambda machine, quick, _: disk(machine, quick), 2.0, 0.6),
    Phase("hand-over of weights", lambda machine, quick, _: handover(machine, quick), 0.5, 0.2),
    Phase("layers forward and backward", layers, 12.0, 2.5),
    Phase("decoding with hf", decoding, 12.0, 4.0),
    Phase("decoding with vLLM", decoding_with_vllm, 30.0, 20.0),
    Phase("collectives", lambda machine, quick, _: collectives(machine, quick), 8.0, 5.0),
)


@dataclass(frozen=True, slots=True)
class Moment:
    """How far the measurements are."""

    phase: str
    """That begins; empty at the end."""
    done: int
    phases: int
    left_seconds: float
    """Until all is done, as the phases so far took; before the first, as on an idle machine."""


@dataclass(slots=True)
class Measured:
    where: str
    """The class of the machine."""
    figures: list[Figure] = field(default_factory=list[Figure])
    missing: list[str] = field(default_factory=list[str])
    """Phases that were not measured."""
    interrupted: bool = False
    seconds: float = 0.0

    def by_path(self) -> dict[str, Figure]:
        """A later figure of the same constant is the better one: of layers, not of bare products."""
        return {figure.path: figure for figure in self.figures if figure.path is not None}


def measure(
    machine: Machine,
    quick: bool = False,
    tell: Callable[[Moment], None] = lambda moment: None,
    phases: Sequence[Phase] = PHASES,
) -> Measured:
    """Run the phases in turn. Ctrl-C ends them: what is not measured by then is in `missing`."""
    found = Measured(machine.where)
    use_all_cores(machine)
    began = time.perf_counter()
    expected = [phase.quick_seconds if quick else phase.seconds for phase in phases]
    try:
        for place, phase in enumerate(phases):
            spent, planned = time.perf_counter() - began, sum(expected[:place])
            pace = spent / planned if planned else 1.0
            tell(Moment(phase.name, place, len(phases), pace * sum(expected[place:])))
            known = {path: figure.value for path, figure in found.by_path().items()}
            made = phase.work(machine, quick, known)
            found.figures += made
            if not made:
                found.missing.append(phase.name)
    except KeyboardInterrupt:
        found.interrupted = True
        found.missing += [phase.name for phase in phases[place:]]
    found.seconds = time.perf_counter() - began
    if not found.interrupted:
        tell(Moment("", len(phases), len(phases), 0.0))
    return found
