"""What the driver is shown of rows does not grow with the length of sequences, and short rows are shown whole."""

from __future__ import annotations

import pickle

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl.backends.batch import Batch, Ragged
from flowrl.runtime.worker import TEXT_CHARACTERS, cut_text, rows_with

FIELDS = ("response", "loss_mask", "weight_version", "rewards", "prompt")


def _rows(tokens: int) -> Batch:
    lengths = np.full(3, tokens, dtype=np.int64)
    versions = np.tile(np.arange(tokens) * 3 // tokens, 3).astype(np.int32)
    messages = [{"role": "user", "content": "2+2=" * tokens}]
    columns = {
        "response": tuple("four " * tokens for _ in range(3)),
        "loss_mask": Ragged(np.tile(np.arange(tokens) > 0, 3), lengths),
        "weight_version": Ragged(versions, lengths),
        "rewards": np.asarray([0.5, 1.0, 1.5], dtype=np.float32),
        "prompt": (messages, messages, messages),
    }
    return Batch(np.arange(3), np.arange(3), columns)


def test_what_is_shown_of_long_rows_has_one_size() -> None:
    sizes = [len(pickle.dumps(rows_with(_rows(tokens), FIELDS, [0, 2]))) for tokens in (2**11, 2**14)]
    assert abs(sizes[1] - sizes[0]) < 64  # digits of what was left out


def test_short_rows_are_shown_whole_and_token_columns_by_their_sum() -> None:
    shown = rows_with(_rows(9), FIELDS, [2, 7])
    assert shown.ids.tolist() == [2]
    assert shown.columns["response"] == ("four " * 9,)
    assert shown.columns["prompt"] == ([{"role": "user", "content": "2+2=" * 9}],)
    assert shown.array("rewards").tolist() == [1.5]
    assert shown.array("loss_mask").tolist() == [8]
    assert shown.columns["weight_version"] == ([[0, 2], [1, 3], [2, 3]],)


@given(st.text(max_size=3 * TEXT_CHARACTERS))
@settings(max_examples=30, deadline=None)
def test_a_cut_text_keeps_both_ends(text: str) -> None:
    cut = str(cut_text(text))
    assert len(cut) <= TEXT_CHARACTERS + 40
    assert (cut == text) == (len(text) <= TEXT_CHARACTERS)
    assert cut.startswith(text[: TEXT_CHARACTERS // 2])
    assert cut.endswith(text[len(text) - min(len(text), TEXT_CHARACTERS // 2) :])
