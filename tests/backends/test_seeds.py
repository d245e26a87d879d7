import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.random import Generator, Philox

from flowrl.backends import seeds

ids = st.integers(0, 2**62)
labels = st.sampled_from(["actor_infer.generate", "actor_infer.generate@val"])


@given(ids, labels, ids)
def test_seed_has_63_bits_and_depends_on_each_part(run_seed: int, label: str, sample_id: int) -> None:
    seed = seeds.sample_seed(run_seed, label, sample_id)
    assert 0 <= seed < 2**63
    assert seed == seeds.sample_seed(run_seed, label, sample_id)
    others = {
        seeds.sample_seed(run_seed + 1, label, sample_id),
        seeds.sample_seed(run_seed, label + "x", sample_id),
        seeds.sample_seed(run_seed, label, sample_id + 1),
    }
    assert seed not in others


@settings(max_examples=30)
@given(ids, labels, ids, st.integers(1, 20))
def test_longer_draws_begin_with_shorter_ones(run_seed: int, label: str, sample_id: int, count: int) -> None:
    long = seeds.uniforms(run_seed, label, sample_id, count + 5)
    assert np.array_equal(long[:count], seeds.uniforms(run_seed, label, sample_id, count))
    assert ((long >= 0) & (long < 1)).all()


@settings(max_examples=30)
@given(st.lists(ids, min_size=1, max_size=6), labels)
def test_rows_equal_single_draws_in_any_order(sample_ids: list[int], label: str) -> None:
    rows = seeds.uniform_rows(3, label, np.asarray(sample_ids, dtype=np.int64), 7)
    for row, sample_id in zip(rows, sample_ids, strict=True):
        assert np.array_equal(row, seeds.uniforms(3, label, sample_id, 7))


def test_uniforms_are_philox_at_the_samples_counter() -> None:
    first = seeds.uniforms(0, "a", 0, 8)
    key = seeds._philox(0, "a", 0).bit_generator.state["state"]["key"]
    by_hand = Generator(Philox(key=key, counter=[0, 9, 0, 0])).random(8)
    assert np.array_equal(seeds.uniforms(0, "a", 9, 8), by_hand)
    assert not np.array_equal(first, by_hand)


def test_draws_of_many_samples_are_uniform_and_unrelated() -> None:
    rows = seeds.uniform_rows(1, "x", np.arange(4000, dtype=np.int64), 4)
    assert abs(rows.mean() - 0.5) < 0.01
    assert abs(rows.var() - 1 / 12) < 0.005
    assert np.abs(np.corrcoef(rows.T) - np.eye(4)).max() < 0.06
    assert abs(np.corrcoef(rows[:-1, 0], rows[1:, 0])[0, 1]) < 0.06


def test_permutations_differ_by_epoch_and_hold_every_row() -> None:
    first, second = (seeds.permutation(0, "data.train", epoch, 100) for epoch in (0, 1))
    assert sorted(first) == list(range(100)) == sorted(second)
    assert not np.array_equal(first, second)
