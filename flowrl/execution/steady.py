"""The steady state of a program with constant durations: how long a step takes once the start has died away.

The timed execution is a max-plus linear system, so with constant durations it becomes periodic: after a transient,
every instruction comes again c steps later exactly c · λ seconds later, λ being the maximum cycle ratio of the event
graph (Baccelli, Cohen, Olsder & Quadrat 1992, "Synchronization and Linearity", theorem 3.28). So λ is that ratio, and
the simulation shows what the period looks like: it runs until it repeats, or where that takes long, a late step of it
stands for all. Where a pool has fewer slots than lanes there is no such graph, and λ is what the simulation repeats
with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from flowrl.execution.expand import expanded, is_plain, ratio_of
from flowrl.execution.simulate import simulate
from flowrl.execution.trace import TraceSpan
from flowrl.program.program import Instruction, Program

_FIRST_STEPS = 8
_MOST_STEPS = 256
"""Where no ratio says how long a step is."""
_SHOWN_STEPS = 32
"""Where one does: a transient that takes longer is cut short."""
_NEVER = 1 << 60
_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class Steady:
    """One period of the steady state."""

    step_seconds: float
    """λ: mean seconds of a step, without what works only every k steps."""
    period_steps: int
    """c: after so many steps everything comes again."""
    spans: tuple[TraceSpan, ...]
    """Spans that overlap [0, c · λ), by start. Those that began before it have a negative start. Time 0 is the start of
    the first instruction of the busiest pool."""


def steady(program: Program, durations: Mapping[str, float]) -> Steady:
    """The steady state of the plain step: without validation, checkpoints and warm-ups.

    Where slots bind and no exact period shows within 256 steps, the mean of the second half stands for it.
    """
    plain = plain_steps(program)
    crowded = expanded(program, durations).crowded
    ratio = None if crowded else ratio_of(program, durations)[0]
    most = _MOST_STEPS if crowded else _SHOWN_STEPS
    steps = _FIRST_STEPS
    while True:
        spans = simulate(plain, durations, steps).spans
        starts = _starts(spans)
        if not starts:
            return Steady(step_seconds=0.0, period_steps=1, spans=())
        found = _exact(starts, spans, steps, ratio) or (_last(starts, spans, steps, ratio) if steps >= most else None)
        if found is not None:
            return found
        steps *= 2


def plain_steps(program: Program) -> Program:
    """The program as it runs between validations and checkpoints, after all warm-ups."""
    return with_work(program, {i.id: (1, 0) for i in program.instructions if is_plain(i)})


def with_work(program: Program, work: Mapping[str, tuple[int, int]]) -> Program:
    """The program with other cadences: (every_steps, start_step) by instruction; what is not named never works."""

    def changed(instruction: Instruction) -> Instruction:
        every, start = work.get(instruction.id, (1, _NEVER))
        return replace(instruction, every_steps=every, start_step=start, epilogue=False)

    return replace(
        program,
        streams=tuple(
            replace(stream, instructions=tuple(map(changed, stream.instructions))) for stream in program.streams
        ),
    )


def _starts(spans: tuple[TraceSpan, ...]) -> dict[str, list[float]]:
    """Start of each working instruction, step after step."""
    starts: dict[str, list[float]] = {}
    for span in spans:
        starts.setdefault(span.instruction, []).append(span.start_seconds)
    return starts


def _exact(
    starts: dict[str, list[float]], spans: tuple[TraceSpan, ...], steps: int, ratio: float | None
) -> Steady | None:
    """The period that the last quarter of the steps shows, if it shows one; that of `ratio`, if it is known."""
    depth = steps // 4
    for period in range(1, steps - depth):
        shift = _shift(starts, steps, depth, period)
        if shift is None:
            continue
        if ratio is not None and abs(shift - ratio * period) > _TOLERANCE * steps * max(shift, ratio):
            return None  # a part of the program that is still ahead of the rest
        begin = _anchor(starts, spans, shift)
        if begin is None or begin < steps - depth - period:
            return None
        return _window(starts, spans, begin, shift / period if ratio is None else ratio, period)
    return None


def _shift(starts: dict[str, list[float]], steps: int, depth: int, period: int) -> float | None:
    """Seconds by which every instruction of the last `depth` steps is later than `period` steps before."""
    shifts = [own[step] - own[step - period] for own in starts.values() for step in range(steps - depth, steps)]
    scale = max(own[-1] for own in starts.values())
    return shifts[0] if max(shifts) - min(shifts) <= _TOLERANCE * scale else None


def _last(starts: dict[str, list[float]], spans: tuple[TraceSpan, ...], steps: int, ratio: float | None) -> Steady:
    """One of the last steps, which is not exactly repeated; without a ratio, as long as the mean of the second half."""
    half = steps // 2
    seconds = max(own[-1] - own[-1 - half] for own in starts.values()) / half if ratio is None else ratio
    begin = _anchor(starts, spans, seconds)
    return _window(starts, spans, half if begin is None else begin, seconds, 1)


def _anchor(starts: dict[str, list[float]], spans: tuple[TraceSpan, ...], seconds: float) -> int | None:
    """The last step (from 0) of the busiest pool such that all that starts within `seconds` was simulated."""
    end = min(own[-1] for own in starts.values())
    own = starts[_first_of_busiest(spans)]
    return next((step for step in range(len(own) - 1, -1, -1) if own[step] + seconds <= end), None)


def _first_of_busiest(spans: tuple[TraceSpan, ...]) -> str:
    """The first instruction of the pool that works longest; of pools that tie, the first to start."""
    work: dict[str, float] = {}
    first: dict[str, str] = {}
    for span in spans:
        work[span.pool] = work.get(span.pool, 0.0) + span.seconds
        first.setdefault(span.pool, span.instruction)
    return first[max(work, key=lambda pool: work[pool])]


def _window(
    starts: dict[str, list[float]], spans: tuple[TraceSpan, ...], step: int, step_seconds: float, period: int
) -> Steady:
    zero = starts[_first_of_busiest(spans)][step]
    length = step_seconds * period
    moved = [replace(span, start_seconds=span.start_seconds - zero) for span in spans]
    inside = [s for s in moved if s.start_seconds < length * (1 - _TOLERANCE) and s.start_seconds + s.seconds > 0]
    return Steady(step_seconds=step_seconds, period_steps=period, spans=tuple(inside))
