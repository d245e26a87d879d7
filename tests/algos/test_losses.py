import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from flowrl.algos.aggregate import AGGREGATES, denominator, numerator
from flowrl.algos.kl import KL
from flowrl.algos.losses import LOSSES, Terms
from flowrl.algos.objective import corrected_mask, objective
from flowrl.graph.params import CorrectionParams, KlParams, UpdateParams
from tests.algos import reference
from tests.algos.batches import Padded, padded

OF_TOKENS = sorted(set(LOSSES) - {"dpo", "bradley_terry", "distill"})
"""Losses of the sampled tokens; the others are in test_pairs.py and test_distill.py."""
PARAMS = UpdateParams(loss="ppo", clip_low=0.2, clip_high=0.28, clip_dual=3.0, clip_value=0.3)


def columns_of(batch: Padded) -> dict[str, Tensor]:
    names = ("old_log_probs", "rollout_log_probs", "ref_log_probs")
    columns = {name: batch.log_probs().double() for name in names}
    return columns | {name: batch.normal().double() for name in ("advantages", "returns", "values")}


def near(batch: Padded, columns: dict[str, Tensor]) -> Tensor:
    """Current log-probs around the old ones, so that ratios fall on both sides of the clip."""
    return (columns["old_log_probs"] + batch.normal(0.3).double()).requires_grad_()


def whole(terms: Terms, mask: Tensor, how: str = "token_mean", fixed: int = 9) -> Tensor:
    return numerator(terms.loss, mask, how) / denominator(mask, how, fixed)


@settings(max_examples=25, deadline=None)
@given(padded(), st.sampled_from(AGGREGATES), st.sampled_from([None, 1.5]))
def test_ppo_and_its_gradient_against_loops(batch: Padded, how: str, dual: float | None) -> None:
    columns = columns_of(batch)
    current = near(batch, columns)
    params = UpdateParams(loss="ppo", clip_low=0.2, clip_high=0.28, clip_dual=dual)

    def by_hand(new: list[list[float]]) -> float:
        losses = [
            [reference.ppo(*cell, 0.2, 0.28, dual) for cell in zip(*rows, strict=True)]
            for rows in zip(new, columns["old_log_probs"].tolist(), columns["advantages"].tolist(), strict=True)
        ]
        return reference.aggregate(losses, batch.mask.tolist(), how, 9)

    loss = whole(LOSSES["ppo"](current, batch.mask, columns, params), batch.mask, how)
    assert loss.item() == pytest.approx(by_hand(current.tolist()), abs=1e-6)
    (grad,) = torch.autograd.grad(loss, current)
    row, place = batch.mask.nonzero()[-1].tolist()
    step = 1e-6
    moved = [current.tolist(), current.tolist()]
    moved[0][row][place] -= step
    moved[1][row][place] += step
    slope = (by_hand(moved[1]) - by_hand(moved[0])) / (2 * step)
    assert grad[row, place].item() == pytest.approx(slope, abs=1e-6)
    assert not grad[~batch.mask].any()


@settings(max_examples=25, deadline=None)
@given(padded())
def test_value_against_loops(batch: Padded) -> None:
    columns = columns_of(batch)
    new = (columns["values"] + batch.normal(0.5).double()).requires_grad_()
    for clip_value in (None, 0.3):
        terms = LOSSES["value"](new, batch.mask, columns, UpdateParams(loss="value", clip_value=clip_value))
        for row, place in batch.mask.nonzero().tolist():
            v, r, old = (t[row, place].item() for t in (new, columns["returns"], columns["values"]))
            expected = (v - r) ** 2 / 2
            if clip_value is not None:
                expected = max(expected, (old + reference.clip(v - old, -0.3, 0.3) - r) ** 2 / 2)
            assert terms.loss[row, place].item() == pytest.approx(expected, abs=1e-9)
    (grad,) = torch.autograd.grad(LOSSES["value"](new, batch.mask, columns, UpdateParams(loss="value")).loss.sum(), new)
    assert torch.allclose(grad, torch.where(batch.mask, new - columns["returns"], 0.0).detach())


@settings(max_examples=25, deadline=None)
@given(padded())
def test_weighted_losses_have_the_gradient_of_their_papers(batch: Padded) -> None:
    """Each is -weight x A x grad log_probs with a weight of its own."""
    columns = columns_of(batch)
    current = near(batch, columns)
    mask, advantages = batch.mask.tolist(), columns["advantages"]
    ratios = (current - columns["old_log_probs"]).exp().tolist()
    for name in ("cispo", "reinforce", "topr", "sft"):
        (grad,) = torch.autograd.grad(LOSSES[name](current, batch.mask, columns, PARAMS).loss.sum(), current)
        for row, own in enumerate(mask):
            sequence = math.prod(r for r, m in zip(ratios[row], own, strict=True) if m)
            for place, inside in enumerate(own):
                advantage = advantages[row, place].item()
                weight = {
                    "cispo": reference.clip(ratios[row][place], 0.8, 1.28),
                    "reinforce": ratios[row][place],
                    "topr": 1.0 if advantage >= 0 else min(sequence, 1.0),
                    "sft": 1.0 / advantage,
                }[name]
                assert grad[row, place].item() == pytest.approx(-weight * advantage * inside, abs=1e-6)


@settings(max_examples=25, deadline=None)
@given(padded())
def test_gspo_clips_the_ratio_of_the_sequence(batch: Padded) -> None:
    columns = columns_of(batch)
    current = near(batch, columns)
    terms = LOSSES["gspo"](current, batch.mask, columns, UpdateParams(loss="gspo", clip_low=0.1, clip_high=0.1))
    (grad,) = torch.autograd.grad(terms.loss.sum(), current)
    for row, own in enumerate(batch.mask.tolist()):
        logs = (current - columns["old_log_probs"])[row].tolist()
        kept = [x for x, m in zip(logs, own, strict=True) if m]
        ratio = math.exp(sum(kept) / len(kept))
        for place, inside in enumerate(own):
            a = columns["advantages"][row, place].item()
            free = ratio * a
            gain = min(free, reference.clip(ratio, 0.9, 1.1) * a)
            assert terms.loss[row, place].item() * inside == pytest.approx(-gain * inside, abs=1e-6)
            # GSPO-token: the gradient of a token is its own only, and none where the clip holds.
            assert grad[row, place].item() == pytest.approx(-free * inside if gain == free else 0.0, abs=1e-6)


@settings(max_examples=25, deadline=None)
@given(padded(), st.sampled_from(OF_TOKENS))
def test_masked_values_never_leak(batch: Padded, name: str) -> None:
    columns = columns_of(batch)
    current = near(batch, columns)
    spoilt = {key: value.masked_fill(~batch.mask, torch.nan) for key, value in columns.items()}
    params = UpdateParams(
        loss=name,
        clip_value=0.2,
        entropy_coef=0.1,
        kl=KlParams(coef=0.1, form="k3"),
        corrections=(CorrectionParams(name="tis", unit="turn", cap=2.0), CorrectionParams(name="mis", unit="sample")),
    )
    entropy = batch.normal().double()
    results = []
    for columns_, fill in ((columns, 0.0), (spoilt, torch.nan)):
        leaves = [t.detach().masked_fill(~batch.mask, fill).requires_grad_() for t in (current, entropy)]
        weight, mask = corrected_mask(batch.mask, columns_, params)
        terms = objective(leaves[0], leaves[1], mask, weight, columns_, params)
        loss = whole(terms, mask, "sequence_mean")
        results.append([loss.detach(), *torch.autograd.grad(loss, leaves)])
    assert all(torch.equal(clean, after) for clean, after in zip(*results, strict=True))


@settings(max_examples=25, deadline=None)
@given(padded(), st.sampled_from(["ppo", "gspo", "cispo", "reinforce"]))
def test_on_policy_every_ratio_is_one(batch: Padded, name: str) -> None:
    columns = columns_of(batch)
    current = columns["old_log_probs"].clone().requires_grad_()
    with_old = LOSSES[name](current, batch.mask, columns, PARAMS)
    without = LOSSES[name](current, batch.mask, {"advantages": columns["advantages"]}, PARAMS)
    assert torch.equal(with_old.loss, without.loss)
    (grad,) = torch.autograd.grad(with_old.loss.sum(), current)
    assert torch.allclose(grad, torch.where(batch.mask, -columns["advantages"], 0.0))
    assert not with_old.metrics["kl"].any()
    assert not with_old.metrics.get("clip_fraction", torch.zeros(1)).any()


@settings(max_examples=25, deadline=None)
@given(padded(), st.sampled_from(OF_TOKENS), st.sampled_from(AGGREGATES), st.integers(1, 4))
def test_padding_and_the_cut_into_micro_batches_change_nothing(batch: Padded, name: str, how: str, extra: int) -> None:
    columns = columns_of(batch)
    current = near(batch, columns).detach()
    expected = whole(LOSSES[name](current, batch.mask, columns, PARAMS), batch.mask, how)
    wide = {key: torch.nn.functional.pad(value, (0, extra), value=7.0) for key, value in columns.items()}
    mask = torch.nn.functional.pad(batch.mask, (0, extra))
    new = torch.nn.functional.pad(current, (0, extra), value=-3.0)
    total = torch.zeros(())
    for rows in torch.arange(len(mask)).split(5):
        terms = LOSSES[name](new[rows], mask[rows], {k: v[rows] for k, v in wide.items()}, PARAMS)
        total = total + numerator(terms.loss, mask[rows], how)
    assert (total / denominator(mask, how, 9)).item() == pytest.approx(expected.item(), abs=1e-9)


@given(st.floats(-3, 0), st.floats(-3, 0))
def test_kl_forms_and_their_gradients(p: float, q: float) -> None:
    """Schulman 2020, with d = log p - log q: d, d²/2 and exp(-d) - 1 + d, with slopes 1, d, 1 - exp(-d) in log p."""
    slopes = {"k1": 1.0, "k2": p - q, "k3": 1 - math.exp(q - p)}
    for form, function in KL.items():
        own = torch.tensor(p, dtype=torch.float64, requires_grad=True)
        got = function(own, torch.tensor(q, dtype=torch.float64))
        assert got.item() == pytest.approx(reference.kl(form, p, q), abs=1e-9)
        (slope,) = torch.autograd.grad(got, own)
        assert slope.item() == pytest.approx(slopes[form], abs=1e-9)
    assert reference.kl("k3", p, q) >= -1e-12


def test_kl_forms_estimate_the_divergence_of_two_distributions() -> None:
    torch.manual_seed(0)
    p, q = torch.randn(6).log_softmax(0), torch.randn(6).log_softmax(0)
    exact = (p.exp() * (p - q)).sum()
    sampled = torch.multinomial(p.exp(), 200_000, replacement=True)
    for form in ("k1", "k3"):
        assert KL[form](p[sampled], q[sampled]).mean().item() == pytest.approx(exact.item(), rel=0.02)


@settings(max_examples=25, deadline=None)
@given(padded())
def test_entropy_and_kl_are_added_per_token(batch: Padded) -> None:
    columns = columns_of(batch)
    current, entropy = near(batch, columns), batch.normal().double()
    params = UpdateParams(loss="ppo", entropy_coef=0.3, kl=KlParams(coef=0.2, form="k3"))
    terms = objective(current, entropy, batch.mask, None, columns, params)
    plain = LOSSES["ppo"](current, batch.mask, columns, params).loss
    for row, place in batch.mask.nonzero().tolist():
        added = 0.2 * reference.kl("k3", current[row, place].item(), columns["ref_log_probs"][row, place].item())
        expected = plain[row, place].item() - 0.3 * entropy[row, place].item() + added
        assert terms.loss[row, place].item() == pytest.approx(expected, abs=1e-9)
