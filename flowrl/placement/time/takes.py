"""Seconds of the parts of a session: when the first prompts of a generate call are done, while the others go on.

Takes the decode model (decode.py) and the number of parts; gives the share of the decode time that each take adds, and
the share of the tokens that is in it. Knows no program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from msgspec.structs import replace

from flowrl.graph.graph import Op
from flowrl.machine.shape import ModelShape
from flowrl.placement.cost.ledger import evaluate
from flowrl.placement.cost.lengths import LengthTable
from flowrl.placement.cost.placed import Placed
from flowrl.placement.cost.rates import rate_inputs
from flowrl.placement.memory import engine as engine_memory
from flowrl.placement.memory.pool import limit_bytes
from flowrl.placement.time.decode import Engine, decode_seconds, drain, step_seconds
from flowrl.placement.time.generation import engine_of
from flowrl.placement.time.ops import Lines, OpTime

AT_ONCE = ("prefill", "controller")
"""Lines of a generate call that are spent when it is opened, whatever is taken when."""
STARTS = 32
"""Prompts that stand for all where they cannot all start at once."""
GRID = 256
"""Moments at which it is counted how many are done."""


def opened_lines(whole: Lines) -> Lines:
    """What opening a session takes, of the lines of a whole call."""
    return [entry for entry in whole if entry.what in AT_ONCE]


def taken_lines(whole: Lines, share: float, origin: str) -> Lines:
    """What one take adds: its share of the rest."""
    return scaled([entry for entry in whole if entry.what not in AT_ONCE], "f", share, origin)


def scaled(whole: Lines, name: str, share: float, origin: str) -> Lines:
    """Each line `share` times. `name`: of the share, which no line has an input of."""
    found: Lines = []
    for entry in whole:
        formula = f"{name}*({entry.formula})"
        inputs: Mapping[str, float] = {**entry.inputs, name: share}
        origins = {**entry.origins, name: origin}
        value = evaluate(formula, inputs)
        found.append(replace(entry, value=value, formula=formula, inputs=dict(inputs), origins=origins))
    return found


def take_shares(times: OpTime, placed: Placed, op: Op, parts: int, *, by_prompt: bool) -> tuple[float, ...]:
    """The share of the decode time that each of `parts` equal parts of the rows adds to those before it. They add up to
    1. `by_prompt`: a part is of whole prompts.

    Engines whose finished rows leave the batch give what is done first (`first_done_seconds`). One that has nothing to
    give before its last row is done gives all with the first part. A denoiser works on equal parts one after another,
    and so, in the steady state, does an engine whose tail is carried over.
    """
    work = times.work
    carried = work.graph.schedule.partial_rollout and op.label is None and op.method == "generate"
    if work.passes(op) is not None or carried:
        return (1.0 / parts,) * parts
    engine, lengths = _engine(times, placed, op), work.lengths(op)
    if not engine.leaves:
        return (1.0, *(0.0,) * (parts - 1))
    call = _call(times, placed, op, by_prompt=by_prompt)
    done = [first_done_seconds(placed.model, engine, call, lengths.responses, (n + 1) / parts) for n in range(parts)]
    return _steps_between([0.0, *done])


def token_shares(times: OpTime, placed: Placed, op: Op, parts: int, *, by_prompt: bool) -> tuple[float, ...]:
    """Tokens of prompts and responses in each of `parts` equal parts of the rows, over those of a part in the mean:
    what is done first is short, and what is done last is long. 1 for all where parts are not by what is done first."""
    work = times.work
    carried = work.graph.schedule.partial_rollout and op.label is None and op.method == "generate"
    engine = _engine(times, placed, op)
    if work.passes(op) is not None or carried or not engine.leaves:
        return (1.0,) * parts
    call, table = _call(times, placed, op, by_prompt=by_prompt), work.lengths(op).responses
    shares = response_shares(table, call.rows / _at_once(engine, call, table), call.samples, parts)
    whole = max(call.prompt + table.mean, 1e-9)
    return tuple((call.prompt + parts * share * table.mean) / whole for share in shares)


def _call(times: OpTime, placed: Placed, op: Op, *, by_prompt: bool) -> Call:
    lengths, rows = times.work.lengths(op), times.work.rows(op)
    each, prompt = max(1.0, rows.count / placed.layout.dp), float(lengths.prompt_mean.value)
    return Call(each, float(rows.count), float(rows.samples.value) if by_prompt else 1.0, prompt)


def _at_once(engine: Engine, call: Call, table: LengthTable) -> float:
    """Rows that an engine decodes at once, as decode.py has it."""
    return max(1.0, min(call.rows, engine.most_sequences, engine.cache_tokens / (call.prompt + table.weighted / 2)))


def _steps_between(done: Sequence[float]) -> tuple[float, ...]:
    whole = done[-1]
    if whole <= 0.0:
        return (1.0, *(0.0,) * (len(done) - 2))
    reached = [max(done[: place + 1]) / max(done) for place in range(len(done))]
    return tuple(after - before for before, after in pairwise(reached))


def _engine(times: OpTime, placed: Placed, op: Op) -> Engine:
    """What an engine of the role can do at this op, as OpTime counts it."""
    limit = limit_bytes(placed.pool, times.pools, times.cluster)
    tokens = engine_memory.cache_tokens(placed, times.work.lengths(op), limit)
    most = placed.role.engine.max_sequences or float("inf")
    if engine_memory.is_engine(placed):
        most = engine_memory.sequences_in_flight(placed)
    in_use = sum(len(pool.devices) for pool in times.pools)
    rates, longest = rate_inputs(placed, "forward", times.cluster.name, in_use), times.work.lengths(op).responses
    return engine_of(placed, rates, most, tokens, longest.longest_of(times.work.rows(op).count))


@dataclass(frozen=True, slots=True)
class Call:
    """Rows of a generate call."""

    rows: float
    """On each engine."""
    everywhere: float
    samples: float
    """That are handed on together, when the last of them is done: those of a prompt, or 1."""
    prompt: float
    """Tokens of it."""


@lru_cache(maxsize=1024)
def first_done_seconds(shape: ModelShape, engine: Engine, call: Call, table: LengthTable, share: float) -> float:
    """Expected seconds of decoding until `share` of the prompts are done, whichever are first, on engines whose
    finished rows leave.

    A prompt starts when there is room for it, at once or after as many steps as `drain` says of the rows before it, and
    is done t steps later with the chance (1 - s(t))^samples. Of many prompts the share that is done is that chance,
    averaged over their starts; the steps until it is `share` are counted with the rows that live in each. Of all
    prompts (share 1) the last is waited for: `decode_seconds`.
    """
    whole = decode_seconds(shape, engine, call.rows, call.everywhere, call.prompt, table)
    if share >= 1.0:
        return whole
    most = _at_once(engine, call, table)
    waves = call.rows / most
    steps = _steps_until(table, waves, call.samples, share)
    if waves > 1.02:
        return min(whole, _in_waves(shape, engine, call, table, most, steps))
    total, now = 0.0, 0.0
    for lives in table.alive:
        width = min(table.width, steps - now)
        if width <= 0.0:
            break
        context, alive = call.prompt + now + width / 2, max(1.0, call.rows * lives)
        together = max(1.0, min(alive, engine.cache_tokens / context))
        total += width * step_seconds(shape, engine, together, context) * (alive / together)
        now += width
    return min(whole, total)


def _steps_until(table: LengthTable, waves: float, samples: float, share: float) -> float:
    """Steps until `share` of the prompts are done: by halving."""
    starts = _starts(table, waves)
    low, high = 0.0, max(starts) + table.most
    for _ in range(40):
        middle = (low + high) / 2
        done = sum((1.0 - _lives(table, middle - start)) ** samples for start in starts if start < middle)
        low, high = (middle, high) if done < share * len(starts) else (low, middle)
    return high


@lru_cache(maxsize=1024)
def response_shares(table: LengthTable, waves: float, samples: float, parts: int) -> tuple[float, ...]:
    """Of the tokens of all responses those in each of `parts` equal parts, in the order in which prompts are done.

    t steps after its start a prompt of n samples is done with the chance F^n, F = 1 - s(t), and the tokens of one of
    its samples are then in the mean the integral of s(x) - s(t) up to t, times F^(n-1), of all n·E[L] together: both
    averaged over the starts, and the one read off at equal steps of the other.
    """
    starts = _starts(table, waves)
    points = [(0.0, 0.0)]
    for place in range(1, GRID):
        now = (max(starts) + table.most) * place / GRID
        ages = [now - start for start in starts if start < now]
        shorter = [1.0 - _lives(table, age) for age in ages]
        done = sum(share**samples for share in shorter) / len(starts)
        tokens = sum(f ** (samples - 1.0) * _shorter(table, age) for f, age in zip(shorter, ages, strict=True))
        points.append((max(points[-1][0], done), max(points[-1][1], tokens / len(starts) / max(table.mean, 1e-9))))
    points.append((1.0, 1.0))
    reached = [_read_off(points, (n + 1) / parts) for n in range(parts)]
    return tuple(after - before for before, after in pairwise([0.0, *reached]))


def _shorter(table: LengthTable, steps: float) -> float:
    """Mean tokens of a response times the chance that it has no more than `steps`."""
    beyond = _lives(table, steps)
    whole, cells = 0.0, int(min(steps, table.most) / table.width)
    for lives in table.alive[:cells]:
        whole += table.width * (lives - beyond)
    if cells < len(table.alive):
        whole += (steps - cells * table.width) * max(0.0, table.alive[cells] - beyond)
    return max(0.0, whole)


def _read_off(points: Sequence[tuple[float, float]], at: float) -> float:
    """Between points on a line. Where many are done at one moment, they are alike."""
    for (before, low), (after, high) in pairwise(points):
        if after >= at:
            return low if after <= before else low + (high - low) * (at - before) / (after - before)
    return 1.0


def _starts(table: LengthTable, waves: float) -> list[float]:
    """Steps at which prompts start: STARTS of them for all, or at once."""
    return [_start(table, (n + 0.5) / STARTS * waves) for n in range(STARTS)] if waves > 1.02 else [0.0]


def _start(table: LengthTable, waves: float) -> float:
    """Steps until a row has its place that has so many rows for each place before it."""
    return 0.0 if waves <= 1.0 else drain(table, waves)[0]


def _lives(table: LengthTable, steps: float) -> float:
    """The share of rows that live after so many steps: between the middles of cells on a line."""
    place = steps / table.width - 0.5
    cell = int(max(0.0, place))
    if cell + 1 >= len(table.alive):
        return table.alive[-1] if steps < table.most else 0.0
    before = table.alive[cell] if place >= 0.0 else 1.0
    after = table.alive[cell + 1] if place >= 0.0 else table.alive[0]
    part = place - cell if place >= 0.0 else 1.0 + 2.0 * place
    return before + (after - before) * part


def _in_waves(shape: ModelShape, engine: Engine, call: Call, table: LengthTable, most: float, steps: float) -> float:
    """Until no row waits each step is one of a full engine, after that one of what still lives."""
    age = table.weighted / 2
    full, lives = drain(table, call.rows / most)
    total, now = min(full, steps) * step_seconds(shape, engine, most, call.prompt + age), full
    for still in lives:
        width = min(table.width, steps - now)
        if width <= 0.0:
            break
        context = call.prompt + min(age + now - full + width / 2, table.most)
        total += width * step_seconds(shape, engine, max(1.0, most * still), context)
        now += width
    return total
