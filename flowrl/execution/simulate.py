"""The virtual clock: drives the executor with modelled durations, and writes the trace that a run would write."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping

from flowrl.diag.diagnostic import InternalError
from flowrl.execution.contract import Firing
from flowrl.execution.executor import Executor
from flowrl.execution.trace import Trace, TraceSpan
from flowrl.program.program import Program


def simulate(
    program: Program,
    durations: Mapping[str, float],
    steps: int,
    first_step: int = 1,
    *,
    drawn: Callable[[str, int], float] | None = None,
) -> Trace:
    """Simulate steps `first_step` … `steps` and the epilogue.

    durations: seconds of each instruction, by id; `drawn`: of its firing in a step, in their place. Idle firings take
    no time and leave no span. Spans are in the order of their starts. Raises InternalError for an instruction without a
    duration, and for a deadlock, which the checker should have found.
    """
    missing = [i.id for i in program.instructions if i.id not in durations]
    if missing:
        raise InternalError(f"no duration for {', '.join(f'`{id}`' for id in missing)}")
    executor = Executor(program, steps, first_step)
    spans: list[TraceSpan] = []
    running: list[tuple[float, int, Firing]] = []
    now, started = 0.0, 0
    while not executor.done:
        for firing in _start_all(executor):
            id = firing.instruction.id
            seconds = 0.0 if firing.idle else durations[id] if drawn is None else drawn(id, firing.step)
            if not firing.idle:
                spans.append(_span(firing, now, seconds))
            heapq.heappush(running, (now + seconds, started, firing))
            started += 1
        if not running:
            raise InternalError("the program is stuck:\n" + "\n".join(executor.waiting()))
        now, _, done = heapq.heappop(running)
        executor.complete(done)
    return Trace(spans=tuple(spans), simulated=True)


def _start_all(executor: Executor) -> list[Firing]:
    """Start what is ready until nothing is: taking a token makes room for its sender."""
    started: list[Firing] = []
    while ready := executor.ready():
        for firing in ready:
            executor.start(firing)
        started.extend(ready)
    return started


def _span(firing: Firing, start: float, seconds: float) -> TraceSpan:
    instruction = firing.instruction
    return TraceSpan(
        instruction=instruction.id,
        pool=instruction.pool,
        role=instruction.role,
        step=firing.step,
        start_seconds=start,
        seconds=seconds,
    )
