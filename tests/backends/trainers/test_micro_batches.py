import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flowrl.backends.trainers.fsdp.micro_batches import cut, dummy, micro_batches
from tests.backends.ranks import sample_rows


@given(st.lists(st.integers(1, 40), max_size=30), st.integers(1, 100))
def test_every_row_once_within_the_budget(lengths: list[int], budget: int) -> None:
    parts = cut(np.asarray(lengths, dtype=np.int64), budget)
    assert sorted(row for part in parts for row in part) == list(range(len(lengths)))
    for part in parts:
        padded = len(part) * max(lengths[row] for row in part)
        assert padded <= budget or len(part) == 1


def test_padding_is_on_the_right_and_never_in_the_mask() -> None:
    batch = sample_rows(7)
    names = ("advantages", "old_log_probs")
    for micro in micro_batches(batch, 30, names, "cpu"):
        for place, row in enumerate(micro.rows):
            tokens = batch.ragged("tokens").rows()[row]
            assert micro.lengths[place] == len(tokens)
            assert micro.ids[place, : len(tokens)].tolist() == tokens.tolist()
            assert micro.mask[place, : len(tokens)].tolist() == batch.ragged("loss_mask").rows()[row].tolist()
            assert not micro.mask[place, len(tokens) :].any()
            for name in names:
                assert micro.columns[name][place, : len(tokens)].tolist() == batch.ragged(name).rows()[row].tolist()


def test_a_dummy_counts_nowhere() -> None:
    micro = dummy(["advantages"], "cpu")
    assert not micro.mask.any()
    assert len(micro.rows) == 0
    assert micro.columns["advantages"].shape == micro.ids.shape
