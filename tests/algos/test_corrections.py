import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl.algos.corrections import correct
from flowrl.graph.params import CorrectionParams
from tests.algos import reference
from tests.algos.batches import Padded, padded

FLOOR, CAP = 0.6, 1.5


def by_hand(name: str, rho: float) -> tuple[float, bool]:
    """Weight, and whether the token stays."""
    inside = FLOOR <= rho <= CAP
    if name == "tis":
        return reference.clip(rho, FLOOR, CAP), True
    if name == "mis":
        return (rho if inside else 0.0), True
    return float(inside), inside


@settings(max_examples=30, deadline=None)
@given(padded(), st.sampled_from(["tis", "mis", "reject"]), st.sampled_from(["token", "turn", "sample"]))
def test_against_loops(batch: Padded, name: str, unit: str) -> None:
    old = batch.log_probs().double()
    rollout = old + batch.normal(0.4).double()
    params = CorrectionParams(name=name, unit=unit, cap=CAP, floor=FLOOR)
    weight, left = correct(old, rollout, batch.mask, [params])
    for row, own in enumerate(batch.mask.tolist()):
        logs = (old - rollout)[row].tolist()
        turns = reference.turns(own)
        for place, inside in enumerate(own):
            if not inside:
                assert weight[row, place] == 0
                assert not left[row, place]
                continue
            turn = next(places for places in turns if place in places)
            places = {"token": [place], "turn": turn, "sample": [p for t in turns for p in t]}[unit]
            expected, stays = by_hand(name, math.exp(sum(logs[p] for p in places)))
            assert weight[row, place].item() == pytest.approx(expected, abs=1e-9)
            assert left[row, place].item() == stays


@given(padded())
def test_equal_log_probs_are_left_alone(batch: Padded) -> None:
    old = batch.log_probs()
    params = [CorrectionParams(name=name, unit="sample", cap=2.0, floor=0.5) for name in ("tis", "mis", "reject")]
    weight, left = correct(old, old.clone(), batch.mask, params)
    assert torch.equal(weight, batch.mask.float())
    assert torch.equal(left, batch.mask)


def test_far_ratios_stay_finite() -> None:
    old, rollout = torch.zeros(1, 2), torch.full((1, 2), -1e4)
    weight, _ = correct(old, rollout, torch.ones(1, 2, dtype=torch.bool), [CorrectionParams(name="tis", cap=2.0)])
    assert weight.tolist() == [[2.0, 2.0]]


def test_several_corrections_multiply() -> None:
    old, rollout = torch.tensor([[0.0, 0.0]]), torch.tensor([[-1.0, -0.1]])
    params = [CorrectionParams(name="tis", cap=2.0), CorrectionParams(name="reject", cap=2.5)]
    weight, left = correct(old, rollout, torch.ones(1, 2, dtype=torch.bool), params)
    assert left.tolist() == [[False, True]]
    assert weight.tolist() == [[0.0, pytest.approx(math.exp(0.1))]]
