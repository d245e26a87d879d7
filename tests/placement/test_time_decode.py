"""Decoding: lengths, a step by hand, and the integral against a simulation of every response, also in waves."""

from __future__ import annotations

import heapq
import math
import random
from dataclasses import replace
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl.machine.models import CARDS
from flowrl.placement.cost.lengths import LengthTable, constant, empirical, lognormal, mean_and_p99
from flowrl.placement.time.decode import Engine, decode_seconds, steady_seconds, step_seconds

ENGINE = Engine(
    flops_per_second=4e14,
    memory_bytes_per_second=2e12,
    link_bytes_per_second=3e11,
    step_seconds=2e-3,
    most_sequences=1e9,
    cache_tokens=1e12,
)
SHAPE = CARDS["Qwen/Qwen2.5-7B"]


def drawn(rng: random.Random, mean: float, most: float, spread: float) -> list[float]:
    """Many lognormal lengths cut off at `most`, with the centre found by halving so that their mean is `mean`."""
    normals = [rng.gauss(0.0, 1.0) for _ in range(20_000)]
    low, high = 0.0, 20.0
    for _ in range(60):
        centre = (low + high) / 2
        found = fmean(min(most, math.exp(centre + spread * each)) for each in normals)
        low, high = (centre, high) if found < mean else (low, centre)
    return [min(most, math.exp(centre + spread * each)) for each in normals]


@pytest.mark.parametrize(("mean", "most", "spread"), [(500, 1000, 0.7), (200, 4096, 1.1), (3000, 4096, 0.7)])
def test_a_lognormal_table_is_what_draws_give(mean: float, most: float, spread: float) -> None:
    lengths = drawn(random.Random(1), mean, most, spread)
    table = lognormal(mean, most, spread)
    assert table.mean == pytest.approx(mean, rel=0.01)
    assert table.square == pytest.approx(fmean(each * each for each in lengths), rel=0.04)
    for share in (0.5, 0.9):
        t = most * share
        cell = int(t / table.width)
        if cell < len(table.alive):
            longer = sum(each > (cell + 0.5) * table.width for each in lengths) / len(lengths)
            assert table.alive[cell] == pytest.approx(longer, abs=0.01)


def test_mean_and_99th_percentile_are_those_given() -> None:
    table = mean_and_p99(500, 2000, 8192)
    assert table.mean == pytest.approx(500, rel=0.01)
    assert table.alive[int(2000 / table.width)] == pytest.approx(0.01, abs=0.003)


@given(st.lists(st.floats(1, 5000), min_size=1, max_size=50))
def test_a_measured_table_has_the_mean_of_its_lengths(lengths: list[float]) -> None:
    table = empirical(tuple(lengths))
    assert table.mean == pytest.approx(fmean(lengths))
    assert table.width * sum(table.alive) == pytest.approx(table.mean, abs=table.width)
    assert table.most == max(lengths)


def test_the_longest_of_many_is_longer() -> None:
    table = lognormal(500, 4096, 0.7)
    longest = [table.longest_of(count) for count in (1, 8, 64, 512)]
    assert longest == sorted(longest)
    assert longest[0] == pytest.approx(500, rel=0.01)


def simulated(rng: random.Random, lengths: list[float], rows: int, most: int, prompt: float) -> float:
    """Every response for itself: as many at once as the engine takes, the next as one ends; a batch between two ends
    takes a step a token."""
    waiting = [rng.choice(lengths) for _ in range(rows)]
    now, seconds = 0.0, 0.0
    ends: list[tuple[float, float]] = []
    while waiting or ends:
        while waiting and len(ends) < most:
            heapq.heappush(ends, (now + waiting.pop(), now))
        end, _ = ends[0]
        context = prompt + fmean(now - start for _, start in ends) + (end - now) / 2
        seconds += (end - now) * step_seconds(SHAPE, ENGINE, len(ends), context)
        now = end
        heapq.heappop(ends)
    return seconds


@pytest.mark.parametrize(
    ("mean", "longest", "spread", "rows", "most"),
    [
        (500, 1000, 0.7, 64, 1000),
        (200, 2000, 1.1, 256, 1000),
        (900, 1000, 0.7, 8, 1000),
        (500, 4096, 0.7, 512, 128),
        (300, 4096, 1.0, 200, 128),
        (800, 1000, 0.7, 640, 64),
    ],
)
def test_decode_is_what_a_simulation_of_each_response_gives(
    mean: float, longest: int, spread: float, rows: int, most: int
) -> None:
    rng = random.Random(0)
    lengths = drawn(rng, mean, longest, spread)
    found = fmean(simulated(rng, lengths, rows, most, 100) for _ in range(max(12, 16_000 // rows)))
    engine = replace(ENGINE, most_sequences=most)
    modelled = decode_seconds(SHAPE, engine, rows, rows, 100, lognormal(mean, longest, spread))
    assert modelled == pytest.approx(found, rel=0.08)


def test_many_engines_wait_for_the_longest_of_all() -> None:
    """16 engines of 8 rows: the step ends with the longest of 128."""
    rng = random.Random(0)
    lengths = drawn(rng, 500, 4096, 0.7)
    found = fmean(max(simulated(rng, lengths, 8, 99, 0) for _ in range(16)) for _ in range(100))
    assert decode_seconds(SHAPE, ENGINE, 8, 128, 0, lognormal(500, 4096, 0.7)) == pytest.approx(found, rel=0.08)


def test_a_decode_step_by_hand() -> None:
    """One sequence: all weights are read once, 15.2 GB over 2 TB/s, 57,344 bytes of cache a token, and 24 bytes for
    each of 152,064 logits."""
    expected = (SHAPE.parameters * 2 + 1000 * 57_344 + 24 * 152_064) / 2e12 + 2e-3
    assert step_seconds(SHAPE, ENGINE, 1, 1000) == pytest.approx(expected, rel=1e-9)


def test_tensor_parallel_divides_what_is_read_and_adds_two_reduces_a_layer() -> None:
    """A tp of 2 for 28 layers: 56 all-reduces of 3,584 bf16 values for each of 64 sequences, half of the bytes each
    way, and their latency (Megatron-LM, arXiv:1909.08053, section 3)."""
    engine = replace(ENGINE, step_seconds=0.0, tp=2, reduce_seconds=1e-5)
    reads = (SHAPE.parameters * 2 / 2 + 64 * 500 * 57_344 / 2 + 64 * 24 * 152_064) / 2e12
    reduces = 56 * (1e-5 + 2 * 0.5 * 64 * 3584 * 2 / 3e11)
    assert step_seconds(SHAPE, engine, 64, 500) == pytest.approx(reads + reduces, rel=1e-9)


def test_a_large_batch_is_bound_by_products() -> None:
    """2 FLOPs per parameter and token (Kaplan et al. 2020): 1,024 tokens take longer to multiply than weights take to
    be read."""
    engine = replace(ENGINE, step_seconds=0.0)
    multiplied = SHAPE.parameters - 152_064 * 3584
    cache = 1024 * 57_344 + 1024 * 24 * 152_064
    expected = 2 * multiplied * 1024 / 4e14 + cache / 2e12
    assert step_seconds(SHAPE, engine, 1024, 1) == pytest.approx(expected, rel=1e-6)


def test_a_mixture_reads_only_the_experts_it_meets() -> None:
    """8 of 128 experts for one sequence, nearly all of them for 512."""
    shape = CARDS["Qwen/Qwen3-30B-A3B"]
    free = replace(ENGINE, step_seconds=0.0, flops_per_second=1e30)
    logits = 24 * shape.vocab
    one = (step_seconds(shape, free, 1, 0) * 2e12 - logits) / 2
    assert one == pytest.approx(shape.active_parameters, rel=1e-6)
    many = (step_seconds(shape, free, 512, 0) * 2e12 - 512 * logits) / 2
    assert many == pytest.approx(shape.parameters, rel=1e-3)


def test_stages_share_the_batch_but_not_the_weights() -> None:
    """Two stages with half of the batch each: every stage reads half of the weights twice; caches are halved."""
    engine = replace(ENGINE, step_seconds=0.0, pp=2)
    expected = (SHAPE.parameters * 2 + 8 * 1000 * 57_344 / 2 + 8 * 24 * 152_064) / 2e12
    assert step_seconds(SHAPE, engine, 8, 1000) == pytest.approx(expected, rel=1e-9)


def test_fp8_halves_what_is_read() -> None:
    engine = replace(ENGINE, step_seconds=0.0, weight_bytes=1, cache_bytes=1)
    expected = (SHAPE.parameters + 1000 * 57_344 / 2 + 24 * 152_064) / 2e12
    assert step_seconds(SHAPE, engine, 1, 1000) == pytest.approx(expected, rel=1e-9)


def test_steps_without_graphs_are_no_faster_than_their_launches() -> None:
    engine = replace(ENGINE, step_seconds=0.0, floor_seconds=0.05)
    assert step_seconds(SHAPE, engine, 1, 1000) == 0.05


def test_responses_that_are_carried_over_wait_for_none() -> None:
    """An engine that never runs empty is as fast as one whose responses all have the mean length, or faster."""
    table = lognormal(500, 4096, 0.9)
    carried = steady_seconds(SHAPE, ENGINE, 64, 100, table)
    assert carried == pytest.approx(500 * step_seconds(SHAPE, ENGINE, 64, 100 + table.weighted / 2), rel=0.01)
    assert carried < decode_seconds(SHAPE, ENGINE, 64, 64, 100, table)


TABLES = st.builds(
    lambda mean, over, spread: lognormal(mean, mean * over, spread),
    st.floats(20, 2000),
    st.floats(1.2, 20),
    st.floats(0.3, 1.4),
)


@settings(deadline=None, max_examples=40)
@given(TABLES, st.integers(1, 400), st.integers(1, 400), st.floats(1.0, 3.0))
def test_more_rows_and_longer_responses_take_no_less(table: LengthTable, rows: int, most: int, factor: float) -> None:
    engine = replace(ENGINE, most_sequences=most)
    took = decode_seconds(SHAPE, engine, rows, rows, 100, table)
    assert decode_seconds(SHAPE, engine, 2 * rows, 2 * rows, 100, table) >= took * 0.98
    longer = replace(table, width=table.width * factor, mean=table.mean * factor, square=table.square * factor**2)
    assert decode_seconds(SHAPE, engine, rows, rows, 100, longer) >= took * 0.999


@pytest.mark.parametrize("rows", [1, 64, 200])
def test_constant_lengths_take_a_step_a_token(rows: int) -> None:
    found = decode_seconds(SHAPE, ENGINE, rows, rows, 0, constant(1000))
    assert found == pytest.approx(1000 * step_seconds(SHAPE, ENGINE, rows, 500), rel=1e-3)


def test_an_engine_whose_rows_do_not_leave_takes_batches_in_turn() -> None:
    """Constant lengths: 128 rows, 8 at once, are 16 batches of as many steps as a response has tokens."""
    engine = replace(ENGINE, leaves=False, most_sequences=8)
    batch = 100 * step_seconds(SHAPE, engine, 8, 50 + 50.0)
    assert decode_seconds(SHAPE, engine, 128, 128, 50, constant(100)) == pytest.approx(16 * batch, rel=0.01)
