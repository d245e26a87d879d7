"""Time of generation: prefill by operations, decode by bytes read, over a batch that shrinks as responses finish.

Takes a distribution of lengths and what one engine can do; integrates the share of responses that still live. Knows no
graph and no pool.
"""

from __future__ import annotations

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


def step_seconds(shape: ModelShape, engine: Engine, batch: float, context: float) -> float:
    """One decode step of `batch` sequences with `context` tokens each.

    Products read the weights that some token meets (all experts that the batch touches) or do 2 FLOPs per parameter and
    token, whichever takes longer; attention reads every sequence's keys and values, or computes with them. Two
    all-reduces a layer if tp > 1. With pp, a pp-th of the batch is in each stage: every stage reads its weights once
    for each part, so weights take as long as without pp, the rest a pp-th.
    """
    part, cards = max(1.0, batch / engine.pp), engine.tp * engine.pp
    read, multiplied = _met(shape, round(part, 1))
    weights = read * engine.imbalance * engine.weight_bytes / (engine.tp * engine.memory_bytes_per_second)
    products = max(weights, 2.0 * multiplied * batch / (cards * engine.flops_per_second))
    cache = batch * shape.cache_bytes(context, engine.cache_bytes, engine.tp) / engine.pp
    scores = batch * shape.attention_flops(context, decode=True) / (cards * engine.flops_per_second)
    attention = max(cache / engine.memory_bytes_per_second, scores)
    sampling = SAMPLING_BYTES * shape.output_width * batch / engine.memory_bytes_per_second
    reduces = 0.0
    if engine.tp > 1:
        bytes = part * shape.hidden * engine.activation_bytes
        share = 2.0 * (engine.tp - 1) / engine.tp
        reduces = 2.0 * shape.layers * (engine.reduce_seconds + share * bytes / engine.link_bytes_per_second)
    on_device = max(products + attention + sampling + reduces, engine.floor_seconds)
    return on_device + engine.step_seconds + engine.sequence_seconds * batch


@lru_cache(maxsize=65536)
def _met(shape: ModelShape, tokens: float) -> tuple[float, int]:
    """Parameters that some of `tokens` tokens meets, and those that one is multiplied with. A token meets e of E
    experts, so an expert stays idle with the chance (1 - e/E)^tokens."""
    parameters = shape.parameters - shape.vision_parameters
    if shape.experts:
        idle = (1.0 - shape.experts_per_token / shape.experts) ** tokens
        parameters -= idle * shape.expert_parameters_total
    return parameters, shape.multiplied_parameters


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
    total = 0.0
    for cell, share in enumerate(table.alive):
        chance = 1.0 - (1.0 - share) ** max(1.0, everywhere)
        if chance <= 1e-6:
            break
        t = (cell + 0.5) * table.width
        alive = max(1.0, rows * share / chance) if engine.leaves else max(1.0, rows)
        together = max(1.0, min(alive, engine.cache_tokens / (prompt + t)))
        step = step_seconds(shape, engine, together, prompt + t)
        total += table.width * chance * step * (alive / together)
    return total


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
    total = full * step_seconds(shape, engine, most, prompt + age)
    draining = everywhere * most / rows
    for cell, share in enumerate(lives):
        chance = 1.0 - (1.0 - share) ** max(1.0, draining)
        if chance <= 1e-6:
            break
        t = (cell + 0.5) * table.width
        alive = max(1.0, most * share / chance)
        total += table.width * chance * step_seconds(shape, engine, alive, prompt + min(age + t, table.most))
    return total


@lru_cache(maxsize=1024)
def drain(table: LengthTable, waves: float) -> tuple[float, tuple[float, ...]]:
    """Steps until no response waits, of `waves` for each place of an engine, and the share of places that still work in
    each cell of time after that.

    Places are renewal processes (Cox 1962): u(t) responses end in one at t, u(t) = f(t) + ∫ u f, and the queue is
    empty when waves - 1 have ended. Long after the start a place has E[L²]/(2 E[L]) tokens to go, and goes on for t
    with the chance ∫ s from t on / E[L].
    """
    if waves > MOST_WAVES:
        whole = max(1e-9, sum(table.alive))
        beyond = list(accumulate(reversed(table.alive)))[::-1]
        lives = tuple(max(0.0, (rest - share / 2) / whole) for rest, share in zip(beyond, table.alive, strict=True))
        return waves * table.mean - table.weighted / 2, lives
    count = len(table.alive)
    edges = [1.0, *((a + b) / 2 for a, b in pairwise(table.alive)), 0.0]
    cells = [0.0, *(before - after for before, after in pairwise(edges)), 0.0]
    at_once, *ends = ((a + b) / 2 for a, b in pairwise(cells))  # of a cell, half at each of its ends
    fresh = [1.0]
    """Share of places that take a new response at the start of each cell."""
    ended = 0.0
    while ended < waves - 1.0 and len(fresh) < 8 * count:
        last = fresh[-len(ends) :]
        fresh.append(sum(map(mul, reversed(last), ends)) / (1.0 - at_once))
        ended += fresh[-1]
    now, padded = len(fresh) - 1, [*table.alive, *([0.0] * count)]
    lives = tuple(
        sum(born * padded[min(now - at + cell, 2 * count - 1)] for at, born in enumerate(fresh) if now - at < count)
        for cell in range(count)
    )
    return now * table.width, tuple(min(1.0, share) for share in lives)


def steady_seconds(shape: ModelShape, engine: Engine, rows: float, prompt: float, table: LengthTable) -> float:
    """Seconds of decoding the tokens of `rows` sequences on one engine that never runs empty: responses that are not
    done when the others are go on in the next step (partial rollouts), so nobody waits for the longest."""
    together = _at_once(engine, rows, prompt, table)
    return rows * table.mean / together * step_seconds(shape, engine, together, prompt + table.weighted / 2)
