import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flowrl.algos import ragged
from tests.algos import reference


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6))
def test_padding_and_back(lengths: list[int]) -> None:
    values = torch.arange(1, sum(lengths) + 1)
    padded = ragged.pad(values, torch.tensor(lengths), fill=-1)
    assert padded.shape == (len(lengths), max(lengths))
    assert [[v for v in row if v != -1] for row in padded.tolist()] == [
        row.tolist() for row in torch.split(values, lengths)
    ]
    assert torch.equal(ragged.unpad(padded, torch.tensor(lengths)), values)


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(-5, 5)), min_size=1, max_size=9))
def test_group_statistics(rows: list[tuple[int, float]]) -> None:
    prompts, values = zip(*rows, strict=True)
    groups, count = ragged.dense(torch.tensor(prompts))
    tensor = torch.tensor(values, dtype=torch.float64)
    mean, std = ragged.group_mean(tensor, groups, count), ragged.group_std(tensor, groups, count)
    for row in range(len(rows)):
        expected = reference.group_stats(values, prompts, row)
        assert (mean[row].item(), std[row].item()) == pytest.approx(expected, abs=1e-9)


@given(st.lists(st.lists(st.booleans(), min_size=5, max_size=5), min_size=1, max_size=4))
def test_runs_are_turns(mask: list[list[bool]]) -> None:
    numbers, count = ragged.runs(torch.tensor(mask))
    turns = [(row, places) for row, own in enumerate(mask) for places in reference.turns(own)]
    assert count == len(turns)
    for number, (row, places) in enumerate(turns):
        assert (numbers == number).nonzero().tolist() == [[row, place] for place in places]


def test_whitening() -> None:
    torch.manual_seed(0)
    values, mask = torch.randn(4, 6), torch.rand(4, 6) < 0.6
    white = ragged.whiten(values.masked_fill(~mask, torch.nan), mask)
    mean, std = reference.mean_std(values[mask].tolist())
    assert torch.allclose(white[mask], (values[mask] - mean) / std, atol=1e-6)
    assert not white[~mask].any()
