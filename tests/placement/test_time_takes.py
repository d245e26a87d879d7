"""When the first rows of a call are done: against a direct simulation of the same engine, response by response."""

from __future__ import annotations

import heapq
import random
from dataclasses import replace
from statistics import fmean

import pytest

from flowrl.placement.cost.lengths import constant, lognormal
from flowrl.placement.time.decode import decode_seconds, step_seconds
from flowrl.placement.time.takes import Call, first_done_seconds, response_shares
from tests.placement.test_time_decode import ENGINE, SHAPE, drawn

PROMPT = 100.0
QUARTERS = (0.25, 0.5, 0.75, 1.0)
BATCHES = [
    (500, 1000, 0.7, 64, 1000, 1),
    (500, 1000, 0.7, 128, 1000, 8),
    (200, 2000, 1.1, 64, 1000, 1),
    (500, 4096, 0.7, 256, 96, 4),
    (300, 4096, 1.0, 128, 96, 1),
    (800, 1000, 0.7, 384, 64, 8),
]
"""Mean, longest and spread of lengths, rows, most at once, samples a prompt."""


def simulated(rng: random.Random, lengths: list[float], rows: int, most: int, samples: int) -> list[float]:
    """Seconds after which a quarter, half, … of the prompts have all their samples. Every response for itself: as many
    at once as the engine takes, the next as one ends; a batch between two ends takes a step a token."""
    waiting = [(rng.choice(lengths), row) for row in range(rows)][::-1]
    now, seconds = 0.0, 0.0
    working: list[tuple[float, float, int]] = []
    done = [0.0] * rows
    while waiting or working:
        while waiting and len(working) < most:
            length, row = waiting.pop()
            heapq.heappush(working, (now + length, now, row))
        end = working[0][0]
        context = PROMPT + fmean(now - start for _, start, _ in working) + (end - now) / 2
        seconds += (end - now) * step_seconds(SHAPE, ENGINE, len(working), context)
        now = end
        done[heapq.heappop(working)[2]] = seconds
    prompts = sorted(max(done[at : at + samples]) for at in range(0, rows, samples))
    return [prompts[int(share * len(prompts)) - 1] for share in QUARTERS]


@pytest.mark.parametrize(
    ("mean", "longest", "spread", "rows", "most", "samples"),
    BATCHES,
)
def test_the_first_prompts_are_done_when_a_simulation_says(
    mean: float, longest: int, spread: float, rows: int, most: int, samples: int
) -> None:
    rng = random.Random(0)
    lengths = drawn(rng, mean, longest, spread)
    runs = [simulated(rng, lengths, rows, most, samples) for _ in range(max(80, 25_000 // rows))]
    table, engine = lognormal(mean, longest, spread), replace(ENGINE, most_sequences=most)
    whole = fmean(each[-1] for each in runs)
    for share, found in zip(QUARTERS, (fmean(each) for each in zip(*runs, strict=True)), strict=True):
        modelled = first_done_seconds(SHAPE, engine, Call(rows, rows, samples, PROMPT), table, share)
        assert modelled == pytest.approx(found, abs=0.08 * whole), share


def test_rows_of_one_length_that_all_fit_are_done_at_once() -> None:
    table = constant(500.0)
    first = first_done_seconds(SHAPE, ENGINE, Call(64, 64, 8, PROMPT), table, 0.25)
    assert first == pytest.approx(decode_seconds(SHAPE, ENGINE, 64, 64, PROMPT, table), rel=0.02)


def test_rows_of_one_length_in_four_waves_are_done_wave_by_wave() -> None:
    """Four waves of 64: each takes as long as the others."""
    engine, table = replace(ENGINE, most_sequences=64), constant(500.0)
    done = [first_done_seconds(SHAPE, engine, Call(256, 256, 1, PROMPT), table, share) for share in QUARTERS]
    assert done == pytest.approx([share * done[-1] for share in QUARTERS], rel=0.05)


def test_more_prompts_are_done_later_and_all_when_the_call_is() -> None:
    table = lognormal(300, 4096, 1.0)
    for most in (1e9, 100.0, 20.0):
        engine = replace(ENGINE, most_sequences=most)
        done = [first_done_seconds(SHAPE, engine, Call(256, 512, 4, PROMPT), table, n / 16) for n in range(1, 17)]
        assert done == sorted(done)
        assert done[-1] == decode_seconds(SHAPE, engine, 256, 512, PROMPT, table)


def tokens_by_quarter(rng: random.Random, lengths: list[float], rows: int, most: int, samples: int) -> list[float]:
    """The share of all tokens in each quarter of the prompts, in the order in which their last sample ends."""
    own = [rng.choice(lengths) for _ in range(rows)]
    free = [0.0] * min(most, rows)
    ends: list[float] = []
    for length in own:
        ends.append(heapq.heappop(free) + length)
        heapq.heappush(free, ends[-1])
    prompts = sorted((max(ends[at : at + samples]), sum(own[at : at + samples])) for at in range(0, rows, samples))
    quarter = len(prompts) // 4
    return [sum(tokens for _, tokens in prompts[n * quarter : (n + 1) * quarter]) / sum(own) for n in range(4)]


@pytest.mark.parametrize(
    ("mean", "longest", "spread", "rows", "most", "samples"),
    [*BATCHES, (300, 4096, 1.0, 512, 32, 1)],
)
def test_the_tokens_of_a_part_are_those_that_a_simulation_counts(
    mean: float, longest: int, spread: float, rows: int, most: int, samples: int
) -> None:
    rng = random.Random(0)
    lengths = drawn(rng, mean, longest, spread)
    runs = [tokens_by_quarter(rng, lengths, rows, most, samples) for _ in range(max(40, 15_000 // rows))]
    found = [fmean(each) for each in zip(*runs, strict=True)]
    modelled = response_shares(lognormal(mean, longest, spread), max(1.0, rows / most), samples, 4)
    assert sum(modelled) == pytest.approx(1.0)
    assert modelled == pytest.approx(found, abs=0.04)


def test_parts_of_responses_of_one_length_have_the_same_tokens() -> None:
    for waves in (1.0, 4.0):
        assert response_shares(constant(500.0), waves, 8, 4) == pytest.approx((0.25,) * 4, abs=0.02)
