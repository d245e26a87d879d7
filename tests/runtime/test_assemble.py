"""The join of a rank's input against a naive one over dictionaries."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrl.backends.batch import SAMPLE_ID_BITS, Batch, Ragged
from flowrl.diag.diagnostic import InternalError
from flowrl.runtime.assemble import Source, assemble


def _value(name: str, id: int) -> list[int]:
    """What the tests put into row `id` of column `name`: of a length that differs from row to row."""
    return [hash((name, id)) % 1000 + t for t in range(id % 4)]


def _batch(ids: list[int], samples: bool) -> Batch:
    array = np.asarray(ids, dtype=np.int64)
    return Batch(
        array,
        array >> SAMPLE_ID_BITS if samples else array,
        {
            "ragged": Ragged.of([np.asarray(_value("ragged", i)) for i in ids], np.int64),
            "array": np.asarray([i * 3 for i in ids], dtype=np.int64),
            "objects": tuple(f"row {i}" for i in ids),
        },
    )


def _plain(batch: Batch, column: str) -> list[object]:
    value = batch.columns[column]
    if isinstance(value, Ragged):
        return [row.tolist() for row in value.rows()]
    return list(value) if isinstance(value, tuple) else value.tolist()


@st.composite
def _cases(draw: st.DrawFn) -> tuple[list[list[int]], list[list[int]], list[int] | None]:
    """Sample ids cut into parts, prompt ids cut into parts, and the ids wanted."""
    prompts = draw(st.lists(st.integers(0, 50), min_size=1, max_size=8, unique=True))
    counts = draw(st.lists(st.integers(1, 4), min_size=len(prompts), max_size=len(prompts)))
    samples = [(p << SAMPLE_ID_BITS) + k for p, n in zip(prompts, counts, strict=True) for k in range(n)]
    shares = draw(st.lists(st.integers(0, 2), min_size=len(samples), max_size=len(samples)))
    sample_parts = [sorted(s for s, share in zip(samples, shares, strict=True) if share == part) for part in range(3)]
    prompt_parts = [sorted(prompts[::2]), sorted(prompts[1::2])]
    chosen = draw(st.none() | st.lists(st.sampled_from(samples), unique=True))
    return sample_parts, prompt_parts, None if chosen is None else sorted(chosen)


@given(_cases())
def test_rows_meet_by_id_and_prompts_are_repeated(
    case: tuple[list[list[int]], list[list[int]], list[int] | None],
) -> None:
    sample_parts, prompt_parts, wanted = case
    sources = [
        Source("tokens", "ragged", tuple(_batch(ids, samples=True) for ids in sample_parts)),
        Source("rewards", "array", tuple(_batch(ids, samples=True) for ids in reversed(sample_parts))),
        Source("prompt", "objects", tuple(_batch(ids, samples=False) for ids in prompt_parts), by_prompt=True),
    ]
    made = assemble(sources, None if wanted is None else np.asarray(wanted, dtype=np.int64))
    ids = sorted(i for part in sample_parts for i in part) if wanted is None else wanted
    assert made.ids.tolist() == ids
    assert made.prompt_ids.tolist() == [i >> SAMPLE_ID_BITS for i in ids]
    assert _plain(made, "tokens") == [_value("ragged", i) for i in ids]
    assert _plain(made, "rewards") == [i * 3 for i in ids]
    assert _plain(made, "prompt") == [f"row {i >> SAMPLE_ID_BITS}" for i in ids]


def test_without_ids_only_rows_that_every_source_has_are_taken() -> None:
    first, second = _batch([1, 2, 5], samples=False), _batch([2, 3, 5], samples=False)
    made = assemble([Source("a", "array", (first,)), Source("b", "array", (second,))])
    assert made.ids.tolist() == [2, 5]


def test_prompt_rows_alone_make_a_batch_of_prompts() -> None:
    made = assemble([Source("prompt", "objects", (_batch([4, 7], samples=False),), by_prompt=True)])
    assert made.ids.tolist() == made.prompt_ids.tolist() == [4, 7]


def test_one_row_a_prompt_of_another_sample_space_is_repeated_too() -> None:
    samples = [(3 << SAMPLE_ID_BITS) + k for k in range(2)]
    greedy = _batch([3 << SAMPLE_ID_BITS], samples=True)
    sources = [
        Source("rewards", "array", (_batch(samples, samples=True),)),
        Source("baseline_rewards", "array", (greedy,), by_prompt=True),
    ]
    assert _plain(assemble(sources), "baseline_rewards") == [3 * samples[0]] * 2


def test_a_whole_source_is_passed_on_without_a_copy() -> None:
    batch = _batch([1, 2, 3], samples=False)
    assert np.shares_memory(assemble([Source("a", "array", (batch,))], batch.ids).array("a"), batch.array("array"))


def test_a_missing_row_is_our_fault() -> None:
    with pytest.raises(InternalError, match="has the id 9"):
        assemble([Source("a", "array", (_batch([1], samples=False),))], np.asarray([9], dtype=np.int64))


def test_an_id_that_comes_twice_is_our_fault() -> None:
    twice = (_batch([1], samples=False), _batch([1], samples=False))
    with pytest.raises(InternalError, match="have one id"):
        assemble([Source("a", "array", twice)])


def test_parts_that_have_some_of_the_rows_each() -> None:
    """What routes bring: NaN, or an empty row, where a part has none. All rows of the second part are another's."""
    ids = [(1 << SAMPLE_ID_BITS) + k for k in range(4)]
    left, right = _batch([ids[0], ids[2]], samples=True), _batch([], samples=True)
    prompts = _batch([1], samples=False)
    sources = [
        Source("by", "objects", (prompts,), by_prompt=True),
        Source("left", "array", (left,)),
        Source("lists", "ragged", (left,)),
        Source("right", "array", (right,)),
    ]
    made = assemble(sources, np.asarray(ids, dtype=np.int64), ("left", "lists", "right"))
    assert made.objects("by") == ("row 1",) * 4
    np.testing.assert_array_equal(made.array("left"), np.asarray([3 * ids[0], np.nan, 3 * ids[2], np.nan], np.float32))
    wanted = [_value("ragged", ids[0]), [], _value("ragged", ids[2]), []]
    assert [row.tolist() for row in made.ragged("lists").rows()] == wanted
    assert np.isnan(made.array("right")).all()
