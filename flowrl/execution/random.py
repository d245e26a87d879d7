"""The step with random lengths and latencies: how long it is in the mean and at worst, and what queues and waits.

Takes a program, the seconds of its instructions and draws for those that are random; gives distributions. Where no pool
is short of slots the program is an event graph, and its steps follow from one another by additions and maxima, so a
thousand of them cost milliseconds; else the virtual clock runs it. Only `random.Random` with a seed draws: the same
input gives the same numbers.

The maximum cycle ratio of the means is a lower bound of the mean step: a start is the maximum of sums, and the mean of
a maximum is no less than the maximum of the means (Jensen; Baccelli et al. 1992, chapter 8).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from flowrl.execution.expand import expanded, is_plain
from flowrl.execution.simulate import simulate
from flowrl.execution.steady import plain_steps
from flowrl.graph.graph import EdgeKind, Graph
from flowrl.placement.cost.lengths import LengthTable
from flowrl.placement.time.draws import Draw
from flowrl.plan.plan import LedgerLine, RandomStep
from flowrl.program.program import Channel, ChannelKind, Instruction, InstructionKind, Program

WARM_STEPS = 24
"""Left out at the start."""
STEPS = 600
"""Of a plan: the 99th percentile is the sixth longest."""
LEAST_STEPS, MOST_WAITS = 120, 60_000
"""Of a plan of very many instructions: what is simulated takes a fraction of a second all the same."""
SAMPLES = 8
"""Responses of a step whose age is looked at, where they go on in the next one."""
Times = Mapping[str, Sequence[float]]
"""By instruction id, step after step."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """What so many simulated steps were like."""

    mean_seconds: float
    p50_seconds: float
    p90_seconds: float
    p99_seconds: float
    busy: dict[str, float]
    """Share of its time in which a pool of one lane works."""
    bubbles: dict[str, float]
    """Seconds of a step in which it waits."""
    queues: dict[str, float]
    """Tokens that lie on a channel between pools, in the mean over time."""
    lag: float
    """Versions between a sample's oldest token and its training, in the mean."""
    lag_most: int
    stale: float
    """Share of samples that would be older than max_lag when they are trained on: dropped, or waited for."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """Every firing of the plain step: when it starts and how long it takes."""

    starts: Times
    seconds: Times

    def ends(self, id: str) -> list[float]:
        return [start + seconds for start, seconds in zip(self.starts[id], self.seconds[id], strict=True)]


def distribution(
    program: Program,
    durations: Mapping[str, float],
    draws: Mapping[str, Draw],
    steps: int = STEPS,
    seed: int = 0,
    max_lag: int = 0,
) -> Distribution:
    """`steps` of them after the warm-up. `durations`: of what has no draw."""
    drawn = draw_steps(program, durations, draws, WARM_STEPS + steps, seed)
    end = drawn.ends(_last(program).id)
    intervals = sorted(after - before for before, after in zip(end[WARM_STEPS - 1 :], end[WARM_STEPS:], strict=False))
    mean = (end[-1] - end[WARM_STEPS - 1]) / steps
    lags, stale = _lags(program, draws, drawn, max_lag, seed)
    busy = {
        stream.pool: sum(sum(drawn.seconds[i.id][WARM_STEPS:]) for i in stream.instructions) / (mean * steps)
        for stream in program.streams
        if stream.slots == 1 and mean > 0
    }
    return Distribution(
        mean_seconds=mean,
        p50_seconds=_share_of(intervals, 0.5),
        p90_seconds=_share_of(intervals, 0.9),
        p99_seconds=_share_of(intervals, 0.99),
        busy={pool: min(1.0, share) for pool, share in busy.items()},
        bubbles={pool: max(0.0, 1.0 - share) * mean for pool, share in busy.items()},
        queues=_queues(program, drawn, mean * steps),
        lag=sum(lags) / len(lags) if lags else 0.0,
        lag_most=max(lags, default=0),
        stale=stale,
    )


def random_step(
    program: Program, durations: Mapping[str, float], draws: Mapping[str, Draw], graph: Graph, seed: int = 0
) -> RandomStep | None:
    """What the plan says of `distribution`; None where slots are short, as running the clock takes long."""
    if expanded(program, durations).crowded:
        return None
    edges = [edge for edge in graph.edges if edge.kind is EdgeKind.WEIGHTS and edge.every_updates is None]
    most = min((edge.tokens - 1 for edge in edges), default=graph.schedule.max_lag)
    steps = max(LEAST_STEPS, min(STEPS, MOST_WAITS // max(1, len(program.channels))))
    found = distribution(program, durations, draws, steps, seed, most)
    return RandomStep(
        steps=steps,
        seed=seed,
        mean_seconds=found.mean_seconds,
        p50_seconds=found.p50_seconds,
        p90_seconds=found.p90_seconds,
        p99_seconds=found.p99_seconds,
        busy=found.busy,
        bubbles=found.bubbles,
        queues=found.queues,
        lag=found.lag,
        stale=found.stale,
        dropped=found.stale if graph.schedule.when_stale == "drop" else 0.0,
    )


def spread_lines(random: RandomStep) -> tuple[LedgerLine, ...]:
    """The figures of step time as ledger lines."""
    whole = random.mean_seconds * random.steps
    how = f"simulated steps, lengths and latencies drawn with seed {random.seed}"
    mean = LedgerLine(
        what="step, mean of draws",
        role=None,
        value=random.mean_seconds,
        unit="s",
        formula="seconds/steps",
        inputs={"steps": random.steps, "seconds": whole},
        origins={"steps": how, "seconds": f"of {random.steps} {how}"},
    )
    shares = ((50, random.p50_seconds), (90, random.p90_seconds), (99, random.p99_seconds))
    return (
        mean,
        *(
            LedgerLine(
                what=f"step, {share} of 100 within",
                role=None,
                value=seconds,
                unit="s",
                formula="t",
                inputs={"t": seconds},
                origins={"t": f"of {random.steps} {how}"},
            )
            for share, seconds in shares
        ),
    )


def draw_steps(
    program: Program, durations: Mapping[str, float], draws: Mapping[str, Draw], steps: int, seed: int
) -> Drawn:
    """Starts and seconds of all firings of the plain step."""
    seconds = _seconds(program, durations, draws, steps, seed)
    graph = expanded(program, dict.fromkeys(durations, 1.0))
    if graph.crowded:
        return Drawn(_simulated(program, durations, seconds, steps), seconds)
    return Drawn(_recursion(program, seconds, steps), seconds)


def _seconds(
    program: Program, durations: Mapping[str, float], draws: Mapping[str, Draw], steps: int, seed: int
) -> dict[str, list[float]]:
    """Drawn one instruction after another, each by a generator of its own, so that one does not move the dice of
    another, and scaled to the plan's mean, so that what is left of a difference to it is what waiting does (a control
    variate). Members of an interaction take as long as each other."""
    found: dict[str, list[float]] = {}
    members = program.together
    for place, instruction in enumerate(program.instructions):
        draw = draws.get(instruction.id)
        if not is_plain(instruction):
            found[instruction.id] = [0.0] * steps
        elif draw is None:
            found[instruction.id] = [durations[instruction.id]] * steps
        elif instruction.id not in found:
            random = Random(f"{seed} {place}")
            drawn = _centred([draw.drawn(random) for _ in range(steps)], durations[instruction.id])
            found |= dict.fromkeys(members.get(instruction.id, (instruction.id,)), drawn)
    return found


def _centred(drawn: list[float], mean: float) -> list[float]:
    counted = drawn[WARM_STEPS:] or drawn
    whole = sum(counted)
    return [each * mean * len(counted) / whole for each in drawn] if whole > 0 else drawn


def _recursion(program: Program, seconds: Times, steps: int) -> Times:
    """Starts by the event graph: of each node the latest of what it waits for."""
    graph = expanded(program, dict.fromkeys(seconds, 1.0))
    ids = [i.id for i in program.instructions]
    first = {id: members[0] for id, members in program.together.items()}
    number = {id: at for at, id in enumerate(dict.fromkeys(first.get(id, id) for id in ids))}
    waits: list[list[tuple[int, int, bool]]] = [[] for _ in number]
    for arc in graph.arcs:
        full = arc.seconds > 0
        wait = (number[arc.source], arc.tokens, full)
        if wait not in waits[number[arc.target]]:
            waits[number[arc.target]].append(wait)
    taken, starts = [seconds[id] for id in number], [[0.0] * steps for _ in number]
    order = _order(waits)
    for step in range(steps):
        for node in order:
            latest = 0.0
            for source, tokens, full in waits[node]:
                before = step - tokens
                if before >= 0:
                    start = starts[source][before] + taken[source][before] if full else starts[source][before]
                    if start > latest:
                        latest = start
            starts[node][step] = latest
    return {id: starts[number[first.get(id, id)]] for id in ids}


def _order(waits: Sequence[Sequence[tuple[int, int, bool]]]) -> list[int]:
    """Nodes, each after those that it waits for in the same step."""
    found: list[int] = []
    left = dict.fromkeys(range(len(waits)))
    while left:
        free = [node for node in left if not any(tokens == 0 and source in left for source, tokens, _ in waits[node])]
        found += free
        for node in free:
            del left[node]
    return found


def _simulated(program: Program, durations: Mapping[str, float], seconds: Times, steps: int) -> Times:
    trace = simulate(plain_steps(program), durations, steps, drawn=lambda id, step: seconds[id][step - 1])
    starts: dict[str, list[float]] = {i.id: [0.0] * steps for i in program.instructions}
    for span in trace.spans:
        starts[span.instruction][span.step - 1] = span.start_seconds
    return starts


def _last(program: Program) -> Instruction:
    """What a step is counted by: its last update, else the last that runs."""
    runs = [i for i in program.instructions if i.kind is InstructionKind.RUN and is_plain(i)]
    updates = [i for i in runs if (i.op or "").split("@")[0].endswith(".update")]
    return [*(runs or program.instructions), *updates][-1]


def _share_of(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def _queues(program: Program, drawn: Drawn, whole: float) -> dict[str, float]:
    """By Little's law (1961): seconds that tokens wait, over seconds."""
    pool_of = {i.id: i.pool for i in program.instructions}
    kinds = (ChannelKind.DATA, ChannelKind.WEIGHTS)
    between = [c for c in program.channels if c.kind in kinds and pool_of[c.source] != pool_of[c.target]]
    return {channel.id: _waited(channel, drawn) / whole for channel in between if whole > 0}


def _waited(channel: Channel, drawn: Drawn) -> float:
    ends, starts = drawn.ends(channel.source), drawn.starts[channel.target]
    pairs = zip(ends, starts[channel.initial_tokens :], strict=False)
    return sum(start - end for step, (end, start) in enumerate(pairs) if step >= WARM_STEPS - channel.initial_tokens)


def _lags(
    program: Program, draws: Mapping[str, Draw], drawn: Drawn, max_lag: int, seed: int
) -> tuple[list[int], float]:
    """Versions between the oldest token of samples and their training, and the share of them that is too old.

    Without partial rollouts every sample of a step has the version that its step received, which is `max_lag` old. With
    them an engine takes each version as it comes, and a response is as old as what was newest when it began.
    """
    sends = [i for i in program.instructions if i.kind is InstructionKind.SEND_WEIGHTS and is_plain(i)]
    if not sends:
        return [], 0.0
    lives = [(i, life) for i in program.instructions if i.id in draws and (life := draws[i.id].life) is not None]
    if not lives:
        return [max_lag], 0.0
    generate, life = lives[0]
    parts = [i.id for i, _ in lives if i.op == generate.op]
    found = _ages(drawn, parts, sends[-1].id, life, seed)
    stale = sum(age > max_lag for age in found)
    return [min(age, max_lag) for age in found], stale / len(found)


def _ages(drawn: Drawn, parts: Sequence[str], send: str, life: tuple[LengthTable, float], seed: int) -> list[int]:
    """Of some responses of each step: versions published from when they began until their training."""
    table, token = life
    random, published = Random(f"{seed} ages"), drawn.ends(send)
    starts, seconds = (
        drawn.starts[parts[0]],
        [sum(each) for each in zip(*(drawn.seconds[i] for i in parts), strict=True)],
    )
    found: list[int] = []
    for step in range(WARM_STEPS, len(starts)):
        for _ in range(SAMPLES):
            left = _length(table, random) * token - random.random() * seconds[step]
            began, at = starts[step] if left > 0 else starts[step] - left, step
            while left > 0 and at > 0:
                at -= 1
                began = starts[at] + max(0.0, seconds[at] - left)
                left -= seconds[at]
            found.append(step - bisect_right(published, began, hi=step))
    return found


def _length(table: LengthTable, random: Random) -> float:
    """Of one response: the first cell that fewer live in than are drawn."""
    drawn = random.random()
    low, high = 0, len(table.alive)
    while low < high:
        middle = (low + high) // 2
        if table.alive[middle] > drawn:
            low = middle + 1
        else:
            high = middle
    return low * table.width
