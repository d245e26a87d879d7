"""Losses on pairs against loops over pairs in float64, written from Rafailov et al. 2023 and Ouyang et al. 2022."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from flowrl.algos.estimators import Samples, estimate
from flowrl.algos.losses import LOSSES
from flowrl.algos.objective import counted_mask
from flowrl.algos.terms import Columns, Terms
from flowrl.graph.params import EstimateParams, UpdateParams
from tests.algos.batches import Padded, padded

DPO, BRADLEY_TERRY = UpdateParams(loss="dpo", beta=0.3), UpdateParams(loss="bradley_terry")
Current = Callable[[Padded], Tensor]


def columns_of(batch: Padded, picks: list[tuple[int, int]]) -> dict[str, Tensor]:
    """Columns of four samples a group, of which picks[group] = (preferred, other) are a pair; equal picks are none."""
    groups, sign = torch.arange(3).repeat_interleave(4), torch.zeros(12, dtype=torch.float64)
    for group, (preferred, other) in enumerate(picks):
        if preferred != other:
            sign[4 * group + preferred], sign[4 * group + other] = 1.0, -1.0
    return {"pair_sign": sign, "pair_group": groups.double(), "ref_log_probs": batch.log_probs().double()}


picks = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=3, max_size=3)


def of(name: str, current: Tensor, mask: Tensor, columns: Columns) -> tuple[Tensor, Terms]:
    params = DPO if name == "dpo" else BRADLEY_TERRY
    terms = LOSSES[name](current, mask, columns, params)
    where = counted_mask(mask, columns, params)
    return terms.loss[where].sum() / where.sum().clamp(min=1), terms


def by_hand(
    name: str, current: list[list[float]] | list[float], batch: Padded, columns: Columns, pairs: object
) -> float:
    losses = []
    for group, (preferred, other) in enumerate(pairs):  # type: ignore[arg-type, var-annotated]
        if preferred == other:
            continue
        scores = []
        for row in (4 * group + preferred, 4 * group + other):
            if name == "bradley_terry":
                scores.append(current[row])
                continue
            reference = columns["ref_log_probs"][row].tolist()
            own = batch.mask[row].tolist()
            scores.append(0.3 * sum(p - q for p, q, m in zip(current[row], reference, own, strict=True) if m))  # type: ignore[arg-type]
        losses.append(math.log1p(math.exp(-(scores[0] - scores[1]))))  # type: ignore[operator]
    return sum(losses) / max(1, len(losses))


@settings(max_examples=30, deadline=None)
@given(padded(), picks, st.sampled_from(["dpo", "bradley_terry"]))
def test_a_loss_and_its_gradient_against_loops(batch: Padded, pairs: list[tuple[int, int]], name: str) -> None:
    columns = columns_of(batch, pairs)
    made = batch.log_probs().double()
    current = (made if name == "dpo" else made.sum(-1)).requires_grad_()
    loss, terms = of(name, current, batch.mask, columns)
    assert loss.item() == pytest.approx(by_hand(name, current.tolist(), batch, columns, pairs), abs=1e-9)
    (grad,) = torch.autograd.grad(loss, current)
    step = 1e-6
    for row in range(0, 12, 5):
        place = (row, int(batch.mask[row].nonzero()[0])) if name == "dpo" else (row,)
        moved = []
        for sign in (1, -1):
            other = current.detach().clone()
            other[place] += sign * step
            moved.append(by_hand(name, other.tolist(), batch, columns, pairs))
        assert grad[place].item() == pytest.approx((moved[0] - moved[1]) / (2 * step), abs=1e-6)
    for group, (preferred, other) in enumerate(pairs):
        if preferred != other:
            row = 4 * group + preferred
            margin = terms.metrics["margin"][row].item()
            assert margin == pytest.approx((terms.metrics["chosen"] - terms.metrics["rejected"])[row].item())
            assert terms.metrics["accuracy"][row].item() == float(margin > 0)


@settings(max_examples=30, deadline=None)
@given(padded(), picks)
def test_at_the_reference_every_margin_is_zero(batch: Padded, pairs: list[tuple[int, int]]) -> None:
    """So the loss is log 2 and each token's gradient beta / 2, up for the preferred response and down for the other
    (Rafailov et al. 2023, section 4)."""
    columns = columns_of(batch, pairs)
    current = columns["ref_log_probs"].clone().requires_grad_()
    loss, terms = of("dpo", current, batch.mask, columns)
    (grad,) = torch.autograd.grad(terms.loss.sum(), current)
    assert torch.allclose(grad, torch.where(batch.mask, -0.15 * columns["pair_sign"][:, None], 0.0))
    count = sum(preferred != other for preferred, other in pairs)
    assert loss.item() == pytest.approx(math.log(2) if count else 0.0)


@settings(max_examples=20, deadline=None)
@given(padded(), picks, st.permutations(range(12)), st.sampled_from(["dpo", "bradley_terry"]))
def test_neither_order_nor_padding_nor_what_is_masked_matters(
    batch: Padded, pairs: list[tuple[int, int]], order: list[int], name: str
) -> None:
    columns = columns_of(batch, pairs)
    made = batch.log_probs().double()
    current = made if name == "dpo" else made.sum(-1)
    expected, _ = of(name, current, batch.mask, columns)
    spoilt = columns | {"ref_log_probs": columns["ref_log_probs"].masked_fill(~batch.mask, torch.nan)}
    moved = {key: value[order] for key, value in spoilt.items()}
    moved["ref_log_probs"] = torch.nn.functional.pad(moved["ref_log_probs"], (0, 3), value=torch.nan)
    mask = torch.nn.functional.pad(batch.mask[order], (0, 3))
    if name == "dpo":
        current = torch.nn.functional.pad(current.masked_fill(~batch.mask, torch.nan), (0, 3), value=torch.nan)
    again, _ = of(name, current[order].requires_grad_(), mask, moved)
    assert again.item() == pytest.approx(expected.item(), abs=1e-9)


def test_a_row_without_its_partner_is_in_no_pair() -> None:
    columns = {"pair_sign": torch.tensor([1.0, -1.0, 1.0]), "pair_group": torch.tensor([0.0, 0.0, 1.0])}
    scores = torch.tensor([0.5, 0.0, 9.0], requires_grad=True)
    loss, _ = of("bradley_terry", scores, torch.ones(3, 1, dtype=torch.bool), columns)
    assert loss.item() == pytest.approx(math.log1p(math.exp(-0.5)))
    (grad,) = torch.autograd.grad(loss, scores)
    assert grad[2] == 0
    nothing = {name: column[2:] for name, column in columns.items()}
    loss, terms = of("bradley_terry", scores[2:], torch.ones(1, 1, dtype=torch.bool), nothing)
    (grad,) = torch.autograd.grad(terms.loss.sum(), scores)
    assert not grad.any()


@settings(max_examples=30, deadline=None)
@given(padded())
def test_best_and_worst_of_each_group(batch: Padded) -> None:
    params = EstimateParams(estimator="best_worst", normalize="none")
    made = estimate(Samples(batch.rewards, batch.mask, batch.prompts), params)
    rewards = batch.rewards.tolist()
    for group in range(3):
        rows = range(4 * group, 4 * group + 4)
        picked = [row for row in rows if made["keep"][row]]
        assert len(picked) == 2
        best = max(rows, key=lambda row: (rewards[row], -row))
        worst = min((row for row in rows if row != best), key=lambda row: (rewards[row], row))
        assert sorted((best, worst)) == picked
        differ = rewards[best] > rewards[worst]
        assert [made["pair_sign"][row].item() for row in (best, worst)] == ([1.0, -1.0] if differ else [0.0, 0.0])
        assert sum(made["pair_sign"][row].item() for row in rows) == 0


def test_one_sample_is_no_pair() -> None:
    samples = Samples(torch.tensor([1.0]), torch.ones(1, 1, dtype=torch.bool), torch.tensor([3]))
    made = estimate(samples, EstimateParams(estimator="best_worst", normalize="none"))
    assert not made["keep"].any()
