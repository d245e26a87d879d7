"""The estimate: what the simulated steady state says of step time, throughput and how busy each pool is.

Takes a program with the modelled seconds of each instruction, and the graph for its batch sizes; gives the plan's
Estimate, each derived figure with a ledger line.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from flowrl.execution.critical import critical_arcs
from flowrl.execution.expand import is_plain, is_save, named, working_seconds
from flowrl.execution.random import random_step, spread_lines
from flowrl.execution.simulate import simulate
from flowrl.execution.steady import Steady, steady, with_work
from flowrl.execution.trace import TraceSpan
from flowrl.graph.graph import Graph
from flowrl.graph.params import GenerateParams
from flowrl.placement.time.draws import Draw
from flowrl.plan.plan import Estimate, LedgerLine, TimelineSpan
from flowrl.program.program import Instruction, Program


def estimate(
    program: Program,
    durations: Mapping[str, float],
    graph: Graph,
    response_tokens: tuple[float, str] | None = None,
    steps: int | None = None,
    draws: Mapping[str, Draw] | None = None,
) -> Estimate:
    """Estimate a stage.

    durations: modelled seconds of each instruction, by id. response_tokens: mean tokens of a response, and its origin;
    where it is not given, `max_response_tokens` of the rollout stands for it, and 0 in a flow without one.
    draws: of the instructions whose seconds are random; without any, nothing is said of spreads.
    `step_seconds` is the time of a plain step; what validation and checkpoints add is in `lines`, and with `steps` the
    time of the whole run. The timeline holds each instruction of the plain step once, from the start of the busiest
    pool's first.
    """
    found = steady(program, durations)
    critical, around = _critical(program, durations, found)
    seldom = _seldom_lines(program, durations)
    samples = graph.step.prompts * graph.step.samples_per_prompt
    tokens, origin = _response_tokens(graph, response_tokens)
    rate = samples / found.step_seconds if found.step_seconds > 0 else 0.0
    random = random_step(program, durations, draws, graph) if draws and found.step_seconds > 0 else None
    return Estimate(
        step_seconds=found.step_seconds,
        samples_per_second=rate,
        tokens_per_second=rate * tokens,
        busy=_busy(program, found),
        timeline=_timeline(found),
        durations=dict(durations),
        critical=critical,
        lines=(
            _step_line(found, around),
            *_rate_lines(samples, tokens, origin, found.step_seconds),
            *seldom,
            *([] if steps is None else [_run_line(steps, found.step_seconds, seldom)]),
            *([] if random is None else spread_lines(random)),
        ),
        random=random,
    )


def _response_tokens(graph: Graph, given: tuple[float, str] | None) -> tuple[float, str]:
    if given is not None:
        return given
    limits = [
        op.params.max_response_tokens for op in graph.ops if isinstance(op.params, GenerateParams) and op.label is None
    ]
    return (float(max(limits)), "max_response_tokens") if limits else (0.0, "no rollout")


def _busy(program: Program, found: Steady) -> dict[str, float]:
    """Share of the period in which at least one instruction of the pool works."""
    length = found.step_seconds * found.period_steps
    return {
        stream.pool: _covered([s for s in found.spans if s.pool == stream.pool], length) / length if length > 0 else 0.0
        for stream in program.streams
    }


def _covered(spans: Sequence[TraceSpan], length: float) -> float:
    """Seconds of [0, length) in at least one span. Spans are in the order of their starts."""
    covered, reached = 0.0, 0.0
    for span in spans:
        start = max(span.start_seconds, reached)
        end = min(span.start_seconds + span.seconds, length)
        covered += max(end - start, 0.0)
        reached = max(reached, end)
    return min(covered, length)


def _timeline(found: Steady) -> tuple[TimelineSpan, ...]:
    return tuple(
        TimelineSpan(
            instruction=span.instruction, pool=span.pool, start_seconds=span.start_seconds, seconds=span.seconds
        )
        for span in found.spans
        if 0 <= span.start_seconds < found.step_seconds
    )


def _critical(program: Program, durations: Mapping[str, float], found: Steady) -> tuple[tuple[str, ...], int]:
    """The critical circle of the plain step, from the instruction that starts first in the timeline, and its tokens:
    the steps that it takes to come round. None, and 0, where slots bound the step."""
    if found.step_seconds <= 0:
        return (), 0
    working = {i.id: working_seconds(i, durations) for i in program.instructions}
    arcs = critical_arcs(program, working, found.step_seconds)
    circle = named(tuple(arc.source for arc in arcs), program)
    started = [span.instruction for span in found.spans if span.start_seconds >= 0 and span.instruction in circle]
    first = circle.index(started[0]) if started else 0
    return circle[first:] + circle[:first], sum(arc.tokens for arc in arcs)


def _step_line(found: Steady, around: int) -> LedgerLine:
    """The maximum cycle ratio; where no circle bounds the step, what the simulation repeats with."""
    steps = around or found.period_steps
    by = "until the critical circle comes round" if around else "until the simulated steady state repeats"
    return LedgerLine(
        what="step",
        role=None,
        value=found.step_seconds,
        unit="s",
        formula="seconds/steps",
        inputs={"steps": steps, "seconds": found.step_seconds * steps},
        origins={"steps": f"steps {by}", "seconds": f"time {by}"},
    )


def _rate_lines(samples: int, tokens: float, origin: str, step_seconds: float) -> tuple[LedgerLine, ...]:
    rate = samples / step_seconds if step_seconds > 0 else 0.0
    return (
        LedgerLine(
            what="samples",
            role=None,
            value=rate,
            unit="samples/s",
            formula="samples/step_seconds",
            inputs={"samples": samples, "step_seconds": step_seconds},
            origins={"samples": "step", "step_seconds": "simulated"},
        ),
        LedgerLine(
            what="tokens",
            role=None,
            value=rate * tokens,
            unit="tokens/s",
            formula="samples*response_tokens/step_seconds",
            inputs={"samples": samples, "response_tokens": tokens, "step_seconds": step_seconds},
            origins={"samples": "step", "response_tokens": origin, "step_seconds": "simulated"},
        ),
    )


def _seldom_lines(program: Program, durations: Mapping[str, float]) -> list[LedgerLine]:
    """What validation and checkpoints add to a step in which they work: one line for each kind and interval."""
    groups: dict[tuple[str, int], list[Instruction]] = defaultdict(list)
    for instruction in program.instructions:
        if not is_plain(instruction):
            what = "checkpoint" if is_save(instruction) else "validation"
            groups[what, instruction.every_steps].append(instruction)
    return [_seldom_line(program, durations, what, every, group) for (what, every), group in sorted(groups.items())]


def _seldom_line(
    program: Program, durations: Mapping[str, float], what: str, every: int, group: Sequence[Instruction]
) -> LedgerLine:
    with_it, without = _ends(program, durations, group)
    return LedgerLine(
        what=what,
        role=None,
        value=with_it - without,
        unit="s",
        formula="with_it - without",
        inputs={"every_steps": every, "with_it": with_it, "without": without},
        origins={
            "every_steps": "flow",
            "with_it": "end of a simulated run with one of it",
            "without": "end of the same run without",
        },
    )


def _run_line(steps: int, step_seconds: float, seldom: Sequence[LedgerLine]) -> LedgerLine:
    """The whole run: validation works in steps 1, 1 + k, … and after the last, checkpoints in steps k, 2 k, …."""
    inputs: dict[str, float] = {"steps": steps, "step_seconds": step_seconds}
    terms = ["steps*step_seconds"]
    total = steps * step_seconds
    for line in seldom:
        every = int(line.inputs["every_steps"])
        times = steps // every if line.what == "checkpoint" else -(-steps // every) + 1
        name = f"{line.what}_{every}"
        inputs |= {f"{name}_times": times, f"{name}_seconds": line.value}
        terms.append(f"{name}_times*{name}_seconds")
        total += times * line.value
    return LedgerLine(
        what="run",
        role=None,
        value=total,
        unit="s",
        formula=" + ".join(terms),
        inputs=inputs,
        origins=dict.fromkeys(inputs, "simulated") | {"steps": "run.steps"},
    )


def _ends(program: Program, durations: Mapping[str, float], seldom: Sequence[Instruction]) -> tuple[float, float]:
    """Seconds after which a run of 9 steps ends if the instructions work once, in step 6, and if they never do."""
    steps, at = 10, 6
    plain = {i.id: (1, 0) for i in program.instructions if is_plain(i)}
    once = {i.id: (at if is_save(i) else at - 1, at - 1) for i in seldom}
    worked, left = with_work(program, plain | once), with_work(program, plain)
    return _end(worked, durations, steps), _end(left, durations, steps)


def _end(program: Program, durations: Mapping[str, float], steps: int) -> float:
    """End of the last step but one: a checkpoint always works in the last."""
    spans = simulate(program, durations, steps).spans
    return max((span.start_seconds + span.seconds for span in spans if span.step < steps), default=0.0)
