"""OpenRLHF 0.11.2: models/loss.py and models/utils.py, an implementation apart from verl's and TRL's.

Where it differs by design: its sequence-level correction is the ratio's geometric mean (loss.py, line 224), ours the
product, so that its token level is compared; its KL is cut off at 10 (utils.py, line 115), which no batch here reaches,
and is of float32.
"""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from flowrl.algos.aggregate import denominator, numerator
from flowrl.algos.estimators import Samples, token_rewards, with_kl
from flowrl.algos.kl import KL
from flowrl.algos.log_probs import token_log_probs
from flowrl.algos.losses import LOSSES
from flowrl.algos.objective import corrected_mask, counted_mask, objective
from flowrl.graph.params import CorrectionParams, UpdateParams
from tests.algos.batches import Padded
from tests.algos.peers.agreement import agree, agree_with_gradients
from tests.algos.peers.imports import peer
from tests.algos.peers.ragged import alike, any_batch, batches, update_of

losses = peer("openrlhf.models.loss", bare=["openrlhf.models"], absent=["deepspeed"])
functions = peer("openrlhf.models.utils", bare=["openrlhf.models"], absent=["deepspeed"])

BY_TOKEN = {"token_mean": True, "sequence_mean": False}


@alike
@given(batches, st.sampled_from(sorted(BY_TOKEN)), st.sampled_from([None, 1.5]))
def test_ppo(batch: Padded, how: str, dual: float | None) -> None:
    update = update_of(batch)
    ours, theirs = update.leaf(), update.leaf()
    loss = losses.PolicyLoss(0.2, 0.28, dual_clip=dual, token_level_loss=BY_TOKEN[how])
    want = loss(theirs, update.old, update.advantages, batch.mask.double())[0]
    got = update.loss(ours, UpdateParams(loss="ppo", clip_low=0.2, clip_high=0.28, clip_dual=dual), how)
    agree_with_gradients("loss ppo", "OpenRLHF PolicyLoss", got, want, ours, theirs)


@alike
@any_batch
def test_gspo(batch: Padded) -> None:
    """Its gradient goes through the ratio of the sequence, ours through each token (GSPO-token): the same where a
    sample has one advantage."""
    update = update_of(batch, whole=True)
    ours, theirs = update.leaf(), update.leaf()
    loss = losses.PolicyLoss(0.1, 0.1, policy_loss_type="gspo")
    want = loss(theirs, update.old, update.advantages, batch.mask.double())[0]
    got = update.loss(ours, UpdateParams(loss="gspo", clip_low=0.1, clip_high=0.1), "sequence_mean")
    agree_with_gradients("loss gspo", "OpenRLHF PolicyLoss", got, want, ours, theirs)


@alike
@given(batches, st.sampled_from([("tis", "clip"), ("mis", "mask")]))
def test_corrections_weigh_the_loss(batch: Padded, names: tuple[str, str]) -> None:
    update = update_of(batch)
    ours, theirs = update.leaf(), update.leaf()
    loss = losses.PolicyLoss(
        0.2, 0.28, is_correction_level="token", is_correction_mode=names[1], is_correction_threshold=[0.6, 1.5]
    )
    want = loss(theirs, update.old, update.advantages, batch.mask.double(), update.rollout)[0]
    params = UpdateParams(
        loss="ppo",
        clip_low=0.2,
        clip_high=0.28,
        corrections=(CorrectionParams(name=names[0], unit="token", floor=0.6, cap=1.5),),
    )
    weight, mask = corrected_mask(batch.mask, update.columns, params)
    terms = objective(ours, None, mask, weight, update.columns, params)
    got = numerator(terms.loss, mask, "token_mean") / denominator(mask, "token_mean")
    agree_with_gradients(f"correction {names[0]} of a token", "OpenRLHF PolicyLoss", got, want, ours, theirs)


@alike
@given(batches, st.sampled_from(sorted(BY_TOKEN)), st.sampled_from([None, 0.3]))
def test_value(batch: Padded, how: str, clip: float | None) -> None:
    update = update_of(batch)
    ours, theirs = ((update.values + update.new - update.old).requires_grad_() for _ in range(2))
    loss = losses.ValueLoss(clip, token_level_loss=BY_TOKEN[how])
    want = loss(theirs, update.values, update.returns, batch.mask.double())
    got = update.loss(ours, UpdateParams(loss="value", clip_value=clip), how)
    agree_with_gradients("loss value", "OpenRLHF ValueLoss", got, want, ours, theirs)


@alike
@given(batches, st.sampled_from(sorted(BY_TOKEN)), st.integers(0, 4))
def test_sft_and_aggregates(batch: Padded, how: str, emptied: int) -> None:
    update = update_of(batch)
    ours, theirs = update.leaf(), update.leaf()
    mask = batch.mask & (torch.arange(len(batch.mask)) >= emptied)[:, None]
    want = losses.SFTLoss(token_level_loss=BY_TOKEN[how])(theirs, mask.double())
    loss = LOSSES["sft"](ours, mask, {}, UpdateParams(loss="sft")).loss
    got = numerator(loss, mask, how) / denominator(mask, how)
    agree_with_gradients("loss sft", "OpenRLHF SFTLoss", got, want, ours, theirs)
    other = losses.aggregate_loss(theirs, mask.double(), BY_TOKEN[how])
    own = numerator(ours, mask, how) / denominator(mask, how)
    agree_with_gradients(f"aggregate {how}", "OpenRLHF aggregate_loss", own, other, ours, theirs)


@alike
@given(batches, st.sampled_from(["dpo", "bradley_terry"]))
def test_losses_on_pairs(batch: Padded, name: str) -> None:
    """Rows 0 and 1, and 2 and 3, of each group of four are pairs."""
    update = update_of(batch)
    ours, theirs = update.leaf(), update.leaf()
    params = UpdateParams(loss=name, beta=0.3)
    sign = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(6)
    columns = update.columns | {"pair_sign": sign, "pair_group": torch.arange(12).double() // 2}
    sums, own = ((leaf * batch.mask).sum(-1) for leaf in (theirs, ours))
    reference = (update.reference * batch.mask).sum(-1)
    if name == "dpo":
        want = losses.DPOLoss(0.3)(sums[::2], sums[1::2], reference[::2], reference[1::2])[0]
    else:
        want = losses.PairWiseLoss()(sums[::2], sums[1::2])
    loss = LOSSES[name](ours if name == "dpo" else own, batch.mask, columns, params).loss
    got = loss.sum() / counted_mask(batch.mask, columns, params).sum()
    function = "DPOLoss" if name == "dpo" else "PairWiseLoss"
    agree_with_gradients(f"loss {name}", f"OpenRLHF {function}", got, want, ours, theirs)


@alike
@given(batches, st.sampled_from(["k1", "k2", "k3"]))
def test_kl_and_its_gradient(batch: Padded, form: str) -> None:
    update = update_of(batch)
    ours, theirs = (update.new.float().requires_grad_() for _ in range(2))
    reference = update.reference.float()
    got, want = KL[form](ours, reference), functions.compute_approx_kl(theirs, reference, kl_estimator=form)
    agree(f"kl {form}", "OpenRLHF compute_approx_kl", got, want)
    slopes = [torch.autograd.grad(each.sum(), leaf)[0] for each, leaf in ((got, ours), (want, theirs))]
    agree(f"kl {form}, gradient", "OpenRLHF compute_approx_kl", *slopes)


@alike
@given(batches, st.sampled_from(["k1", "k2", "k3"]))
def test_a_kl_in_the_reward(batch: Padded, form: str) -> None:
    update = update_of(batch)
    samples = Samples(
        batch.rewards,
        batch.mask,
        batch.prompts,
        old_log_probs=update.old.float(),
        ref_log_probs=update.reference.float(),
    )
    assert samples.old_log_probs is not None
    divergence = functions.compute_approx_kl(samples.old_log_probs, samples.ref_log_probs, kl_estimator=form)
    want = functions.compute_reward(batch.rewards, 0.2, divergence, action_mask=batch.mask)
    agree(f"kl {form} in the reward", "OpenRLHF compute_reward", with_kl(samples, 0.2, form), want * batch.mask)
    nothing = functions.compute_reward(batch.rewards, 0.0, torch.zeros_like(divergence), action_mask=batch.mask)
    agree("rewards on last tokens", "OpenRLHF compute_reward", token_rewards(samples), nothing)


@alike
@given(batches, st.sampled_from([1.0, 0.7]))
def test_log_probs(batch: Padded, temperature: float) -> None:
    logits = torch.randn((*batch.mask.shape, 11), generator=batch.generator, dtype=torch.float64)
    targets = torch.randint(11, batch.mask.shape, generator=batch.generator)
    ours, theirs = (logits.clone().requires_grad_() for _ in range(2))
    # It divides the logits in place, which a leaf does not allow.
    want = functions.log_probs_from_logits(theirs * 1.0, targets, temperature)
    got = token_log_probs(ours, targets, temperature)
    agree("log_probs", "OpenRLHF log_probs_from_logits", got, want)
    weight = batch.normal().double()
    pair = ((got * weight).sum(), (want * weight).sum())
    agree_with_gradients("log_probs, weighted", "OpenRLHF log_probs_from_logits", *pair, ours, theirs)
