"""Time of generation: prefill by operations, decode by bytes read, over a batch that shrinks as responses finish.

Takes a distribution of lengths and what one engine can do; integrates the share of responses that still live. Knows no
graph and no pool.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from math import ceil
from operator import mul

from flowrl.machine.shape import ModelShape
from flowrl.placement.cost.lengths import LengthTable

SAMPLING_BYTES = 24
"""Moved for one logit of a sequence: float32 logits written, scaled, sorted or summed, and read."""

MOST_WAVES = 4.0
"""Beyond which the start of an engine does not matter for its end."""


@dataclass(frozen=True, slots=True)
class Engine:
    """What one engine (a dp rank of tp * pp devices) can do, in units of a second and a byte."""

    flops_per_second: float
    """Of one device."""
    memory_bytes_per_second: float
    link_bytes_per_second: float
    """Between the devices of a tensor-parallel group."""
    step_seconds: float
    """Of a step, whatever its size."""
    most_sequences: float
    cache_tokens: float
    sequence_seconds: float = 0.0
    """Of one sequence in a step, on the host."""
    floor_seconds: float = 0.0
    """A step's launches where no graph is captured: no step is faster."""
    waits: bool = False
    """Whether the device waits for its launches, being the processor that makes them: they add to its work."""
    slow: float = 1.0
    """Products over their peak, in a step."""
    shrinks: bool = False
    """Whether finished rows leave a batch that nothing enters."""
    stepped: float = 1.0
    """Share of a response's tokens that decode steps make; the others come with its prompt."""
    reduce_seconds: float = 0.0
    """Latency of one all-reduce."""
    imbalance: float = 1.0
    """Of the busiest of the devices that share experts out."""
    tp: int = 1
    pp: int = 1
    weight_bytes: float = 2.0
    cache_bytes: int = 2
    activation_bytes: float = 2.0
    leaves: bool = True
    """Whether a finished response leaves the batch; else all stay until the longest is done."""


Step = Callable[[float, float], float]
"""Seconds of one decode step of so many sequences with so many tokens of context each."""


def step_seconds(shape: ModelShape, engine: Engine, batch: float, context: float) -> float:
    """One decode step of `batch` sequences with `context` tokens each.

    Products read the weights that some token meets (all experts that the batch touches) or do 2 FLOPs per parameter and
    token, whichever takes longer; attention reads every sequence's keys and values, or computes with them. Two
    all-reduces a layer if tp > 1. With pp, a pp-th of the batch is in each stage: every stage reads its weights once
    for each part, so weights take as long as without pp, the rest a pp-th.
    """
    return _step_of(shape, engine)(batch, context)


@lru_cache(maxsize=1024)
def _step_of(shape: ModelShape, engine: Engine) -> Step:
    """`step_seconds` of one model on one engine, with all that does not change from step to step worked out: an
    integral asks it for each of its cells."""
    pp, tp, memory = engine.pp, engine.tp, engine.memory_bytes_per_second
    read_rate, flops = tp * memory, tp * pp * engine.flops_per_second
    parameters, multiplied = shape.parameters - shape.vision_parameters, 2.0 * engine.slow * shape.multiplied_parameters
    idle, experts = 1.0 - shape.experts_per_token / max(1, shape.experts), shape.expert_parameters_total
    imbalance, weight_bytes = engine.imbalance, engine.weight_bytes
    full, windowed, window = shape.full_layers, shape.windowed_layers, shape.window
    cached, state = shape.layer_cache_bytes(engine.cache_bytes, tp), shape.state_bytes(engine.cache_bytes, tp)
    pair, recurrent = shape.pair_flops(decode=True), shape.recurrent_flops
    logits, reduces_of = SAMPLING_BYTES * shape.output_width, 2.0 * shape.layers
    hidden, activation_bytes, share = shape.hidden, engine.activation_bytes, 2.0 * (tp - 1) / tp
    reduce_seconds, link = engine.reduce_seconds, engine.link_bytes_per_second
    floor, fixed, each, stepped = engine.floor_seconds, engine.step_seconds, engine.sequence_seconds, engine.stepped
    if engine.waits:
        fixed, floor = fixed + floor, 0.0

    def step(batch: float, context: float) -> float:
        part = batch / pp
        if part < 1.0:
            part = 1.0
        # A token meets e of E experts, so an expert stays idle with the chance (1 - e/E)^tokens.
        read = parameters - idle ** round(part, 1) * experts if experts else parameters
        weights, products = read * imbalance * weight_bytes / read_rate, multiplied * batch / flops
        if weights > products:
            products = weights
        seen = full * context + windowed * min(context, window) if windowed else full * context
        attention, scores = batch * (seen * cached + state) / pp / memory, batch * (pair * seen + recurrent) / flops
        if scores > attention:
            attention = scores
        sampling = logits * batch / memory
        on_device = products + attention + sampling
        if tp > 1:
            on_device += reduces_of * (reduce_seconds + share * (part * hidden * activation_bytes) / link)
        return stepped * ((on_device if on_device > floor else floor) + fixed + each * batch)

    return step


@lru_cache(maxsize=8192)
def decode_seconds(
    shape: ModelShape, engine: Engine, rows: float, everywhere: float, prompt: float, table: LengthTable
) -> float:
    """Expected seconds until the last of `everywhere` responses, `rows` of them on each engine, is done.

    A step at t is made if any response still lives, which has the chance 1 - (1 - s)^everywhere, with the mean number
    of those that live here. Where more rows wait than the engine takes at once, it runs full until none waits, and then
    drains (`_waves`). One whose finished rows do not leave takes batches one after another, each until its last row.
    """
    if rows > engine.most_sequences and not engine.leaves:
        batches = ceil(rows / engine.most_sequences)
        return batches * decode_seconds(shape, engine, rows / batches, everywhere / batches, prompt, table)
    most = _at_once(engine, rows, prompt, table)
    if rows > most * 1.02 and engine.leaves:
        return _waves(shape, engine, rows, everywhere, prompt, table, most)
    total, step, leaves, room = 0.0, _step_of(shape, engine), engine.leaves or engine.shrinks, engine.cache_tokens
    alive = max(1.0, rows)
    for middle, share, chance, steps in _cells(table.alive, table.width, everywhere):
        if leaves:
            alive = rows * share / chance
            if alive < 1.0:
                alive = 1.0
        context = prompt + middle
        most = room / context
        if alive <= most:
            total += steps * step(alive, context)
        else:
            together = max(1.0, most)
            total += steps * step(together, context) * (alive / together)
    return total


@lru_cache(maxsize=1024)
def _cells(alive: tuple[float, ...], width: float, everywhere: float) -> tuple[tuple[float, float, float, float], ...]:
    """Of each cell of time in which any of `everywhere` responses may still live: its middle in tokens, the share that
    lives there, the chance that any does, and the steps expected of it."""
    found: list[tuple[float, float, float, float]] = []
    for cell, share in enumerate(alive):
        chance = 1.0 - (1.0 - share) ** max(1.0, everywhere)
        if chance <= 1e-6:
            break
        found.append(((cell + 0.5) * width, share, chance, width * chance))
    return tuple(found)


def _at_once(engine: Engine, rows: float, prompt: float, table: LengthTable) -> float:
    """Rows that an engine decodes at once: its limit of sequences, and of cache for contexts of mean age."""
    context = prompt + table.weighted / 2
    return max(1.0, min(rows, engine.most_sequences, engine.cache_tokens / context))


def _waves(
    shape: ModelShape, engine: Engine, rows: float, everywhere: float, prompt: float, table: LengthTable, most: float
) -> float:
    """A full engine replaces what finishes until none waits; then what lives drains."""
    full, lives = drain(table, rows / most)
    age = table.weighted / 2
    step, longest = _step_of(shape, engine), table.most
    total = full * step(most, prompt + age)
    for middle, share, chance, steps in _cells(lives, table.width, everywhere * most / rows):
        alive = most * share / chance
        total += steps * step(alive if alive > 1.0 else 1.0, prompt + min(age + middle, longest))
    return total


def drain(table: LengthTable, waves: float) -> tuple[float, tuple[float, ...]]:
    """Steps until no response waits, of `waves` for each place of an engine, and the share of places that still work in
    each cell of time after that.

    Places are renewal processes (Cox 1962): u(t) responses end in one at t, u(t) = f(t) + ∫ u f, and the queue is
    empty when waves - 1 have ended. Long after the start a place has E[L²]/(2 E[L]) tokens to go, and goes on for t
    with the chance ∫ s from t on / E[L].
    """
    if waves > MOST_WAVES:
        return waves * table.mean - table.weighted / 2, _lives_late(table)
    now = bisect_left(_renewals(table)[1], waves - 1.0)
    now = min(now, len(_renewals(table)[1]) - 1)
    return now * table.width, _lives_after(table, now)


@lru_cache(maxsize=256)
def _lives_late(table: LengthTable) -> tuple[float, ...]:
    """Of places long after the start."""
    whole = max(1e-9, sum(table.alive))
    beyond = list(accumulate(reversed(table.alive)))[::-1]
    return tuple(max(0.0, (rest - share / 2) / whole) for rest, share in zip(beyond, table.alive, strict=True))


@lru_cache(maxsize=256)
def _renewals(table: LengthTable) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The share of places that take a new response at the start of each cell, and how many responses of a place have
    ended by then, as far as MOST_WAVES need it."""
    count = len(table.alive)
    edges = [1.0, *((a + b) / 2 for a, b in pairwise(table.alive)), 0.0]
    cells = [0.0, *(before - after for before, after in pairwise(edges)), 0.0]
    at_once, *ends = ((a + b) / 2 for a, b in pairwise(cells))  # of a cell, half at each of its ends
    fresh, ended = [1.0], [0.0]
    while ended[-1] < MOST_WAVES - 1.0 and len(fresh) < 8 * count:
        last = fresh[-len(ends) :]
        fresh.append(sum(map(mul, reversed(last), ends)) / (1.0 - at_once))
        ended.append(ended[-1] + fresh[-1])
    return tuple(fresh), tuple(ended)


@lru_cache(maxsize=4096)
def _lives_after(table: LengthTable, now: int) -> tuple[float, ...]:
    """Of places in each cell after the cell `now`: of what started in the last cells, what is as old by then."""
    count, fresh = len(table.alive), _renewals(table)[0]
    young = fresh[max(0, now - count + 1) : now + 1]
    padded = [*table.alive, *([0.0] * count)]
    ages = (reversed(padded[cell : cell + len(young)]) for cell in range(count))
    return tuple(min(1.0, sum(map(mul, young, each))) for each in ages)


def steady_seconds(shape: ModelShape, engine: Engine, rows: float, prompt: float, table: LengthTable) -> float:
    """Seconds of decoding the tokens of `rows` sequences on one engine that never runs empty: responses that are not
    done when the others are go on in the next step (partial rollouts), so nobody waits for the longest."""
    together = _at_once(engine, rows, prompt, table)
    return rows * table.mean / together * step_seconds(shape, engine, together, prompt + table.weighted / 2)
