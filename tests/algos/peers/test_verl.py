"""verl 0.9.1: trainer/ppo/core_algos.py, rollout_corr_helper.py, trainer/distillation, utils/torch_functional.py.

Where it differs by design it is asked for what both define: its GRPO adds 1e-6 to the deviation as ours does, its group
of one keeps its reward (line 312) where ours has none, and groups here are of four; its sequence means add 1e-8 to the
number of tokens (line 1194), which is inside the tolerance.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from flowrl.algos.aggregate import denominator, numerator
from flowrl.algos.corrections import correct
from flowrl.algos.estimators import Samples, estimate
from flowrl.algos.kl import KL
from flowrl.algos.log_probs import chosen_log_probs, token_log_probs_and_entropy, top_log_probs
from flowrl.algos.losses import LOSSES
from flowrl.algos.objective import objective
from flowrl.algos.ragged import runs
from flowrl.graph.params import CorrectionParams, EstimateParams, KlParams, UpdateParams
from tests.algos.batches import Padded
from tests.algos.peers.agreement import agree, agree_with_gradients
from tests.algos.peers.imports import peer
from tests.algos.peers.ragged import alike, any_batch, batches, on_last_token, update_of

core = peer("verl.trainer.ppo.core_algos")
correction = peer("verl.trainer.ppo.rollout_corr_helper")
distillation = peer("verl.trainer.distillation.fsdp.losses")
functional = peer("verl.utils.torch_functional")
config = peer("verl.workers.config")
algorithm = peer("verl.trainer.config")

AGGREGATES = {
    "token_mean": "token-mean",
    "sequence_mean": "seq-mean-token-mean",
    "sequence_sum_fixed": "seq-mean-token-sum-norm",
}
FIXED = 9


def actor(low: float = 0.2, high: float = 0.28, dual: float | None = None, how: str = "token_mean") -> object:
    made = config.FSDPActorConfig(
        strategy="fsdp",
        rollout_n=4,
        ppo_mini_batch_size=12,
        ppo_micro_batch_size_per_gpu=12,
        clip_ratio=low,
        clip_ratio_low=low,
        clip_ratio_high=high,
        clip_ratio_c=1e9 if dual is None else dual,
        loss_scale_factor=FIXED,
    )
    made.global_batch_info["loss_scale_factor"] = FIXED if how == "sequence_sum_fixed" else None
    return made


def samples_of(batch: Padded, rewards: Tensor | None = None) -> Samples:
    return Samples(
        rewards=batch.rewards.double() if rewards is None else rewards,
        mask=batch.mask,
        prompts=batch.prompts,
        values=batch.normal().double(),
        baseline_rewards=batch.normal().double()[:, 0],
        old_log_probs=batch.log_probs().double(),
        ref_log_probs=batch.log_probs().double(),
    )


BY_GROUP = [
    ("grpo", "group", "compute_grpo_outcome_advantage", {}),
    ("grpo", "group", "compute_grpo_vectorized_outcome_advantage", {}),
    ("dr_grpo", "none", "compute_grpo_outcome_advantage", {"norm_adv_by_std_in_grpo": False}),
    ("rloo", "none", "compute_rloo_outcome_advantage", {}),
    ("rloo", "none", "compute_rloo_vectorized_outcome_advantage", {}),
    ("opo", "none", "compute_opo_outcome_advantage", {}),
    ("reinforce_pp_baseline", "batch", "compute_reinforce_plus_plus_baseline_outcome_advantage", {}),
]


@pytest.mark.parametrize(("name", "normalize", "theirs", "keys"), BY_GROUP)
@alike
@any_batch
def test_estimators_by_group(name: str, normalize: str, theirs: str, keys: dict[str, bool], batch: Padded) -> None:
    samples, mask = samples_of(batch), batch.mask.double()
    got = estimate(samples, EstimateParams(estimator=name, normalize=normalize))["advantages"]
    rewards = on_last_token(samples.rewards, batch.mask)
    want, _ = getattr(core, theirs)(rewards, mask, index=batch.prompts.numpy(), **keys)
    agree(f"estimator {name}", f"verl {theirs}", got, want)


@alike
@given(batches, st.booleans(), st.sampled_from([1.0, 0.9]), st.sampled_from([1.0, 0.7, 0.0]))
def test_gae(batch: Padded, process: bool, gamma: float, lam: float) -> None:
    samples, mask = samples_of(batch, batch.normal().double() if process else None), batch.mask.double()
    assert samples.values is not None
    rewards = samples.rewards * mask if process else on_last_token(samples.rewards, batch.mask)
    params = EstimateParams(estimator="gae", normalize="batch", gamma=gamma, lam=lam)
    got = estimate(samples, params)
    want, returns = core.compute_gae_advantage_return(rewards, samples.values, mask, gamma, lam)
    # Outside the mask verl's hold what was carried over; its trainer never reads them.
    agree("estimator gae", "verl compute_gae_advantage_return", got["advantages"], want * mask)
    agree("estimator gae, returns", "verl compute_gae_advantage_return", got["returns"], returns * mask)


@alike
@given(batches, st.booleans(), st.sampled_from([1.0, 0.9]))
def test_reinforce_pp(batch: Padded, process: bool, gamma: float) -> None:
    samples, mask = samples_of(batch, batch.normal().double() if process else None), batch.mask.double()
    rewards = samples.rewards * mask if process else on_last_token(samples.rewards, batch.mask)
    theirs = core.compute_reinforce_plus_plus_outcome_advantage
    want, returns = theirs(rewards, mask, config=SimpleNamespace(gamma=gamma))
    for name, normalize, advantages in (("reinforce_pp", "batch", want), ("reinforce", "none", returns)):
        got = estimate(samples, EstimateParams(estimator=name, normalize=normalize, gamma=gamma))
        agree(f"estimator {name}", f"verl {theirs.__name__}", got["advantages"], advantages)
        agree(f"estimator {name}, returns", f"verl {theirs.__name__}", got["returns"], returns)


@alike
@any_batch
def test_remax(batch: Padded) -> None:
    samples, mask = samples_of(batch), batch.mask.double()
    got = estimate(samples, EstimateParams(estimator="remax", normalize="none"))["advantages"]
    rewards = on_last_token(samples.rewards, batch.mask)
    want, _ = core.compute_remax_outcome_advantage(rewards, samples.baseline_rewards, mask)
    # Between turns verl's hold the reward to go; its losses never read them.
    agree("estimator remax", "verl compute_remax_outcome_advantage", got, want * mask)


@alike
@any_batch
def test_raft_has_the_best_of_pass_at_k(batch: Padded) -> None:
    """verl has no RAFT. Its estimator for pass@k gives the best of each group, and no other, the lead over the second:
    where that is not 0, RAFT's 1 stands at the same samples."""
    theirs = core.compute_grpo_passk_outcome_advantage
    options = algorithm.AlgoConfig(norm_adv_by_std_in_grpo=False)
    rewards = on_last_token(batch.rewards, batch.mask)
    lead, _ = theirs(rewards, batch.mask.double(), index=batch.prompts.numpy(), config=options)
    got = estimate(samples_of(batch), EstimateParams(estimator="raft", normalize="none"))["advantages"]
    led = torch.isin(batch.prompts, batch.prompts[(lead != 0).any(-1)])
    if led.any():
        agree("estimator raft", f"verl {theirs.__name__} != 0", got[led], (lead[led] != 0).double())


@alike
@given(batches, st.floats(0.1, 2.0))
def test_reverse_kl_is_the_penalty_of_no_reward(batch: Padded, coef: float) -> None:
    samples = samples_of(batch)
    assert samples.old_log_probs is not None
    params = EstimateParams(estimator="reverse_kl", normalize="none", extra={"coef": coef})
    got = estimate(samples, params)["advantages"]
    nothing = torch.zeros_like(samples.old_log_probs)
    want = core.compute_rewards(nothing, samples.old_log_probs, samples.ref_log_probs, coef)
    agree("estimator reverse_kl", "verl compute_rewards", got, want * batch.mask)


@alike
@given(batches, st.sampled_from(["ppo", "gspo", "cispo"]), st.sampled_from(sorted(AGGREGATES)))
def test_clipped_losses(batch: Padded, name: str, how: str) -> None:
    update = update_of(batch)
    for dual in (None, 1.5) if name == "ppo" else (None,):
        params = UpdateParams(loss=name, clip_low=0.2, clip_high=0.28, clip_dual=dual)
        ours, theirs = update.leaf(), update.leaf()
        function = core.get_policy_loss_fn("vanilla" if name == "ppo" else name)
        want, _ = function(
            old_log_prob=update.old,
            log_prob=theirs,
            advantages=update.advantages,
            response_mask=batch.mask.double(),
            loss_agg_mode=AGGREGATES[how],
            config=actor(dual=dual, how=how),
        )
        got = update.loss(ours, params, how, FIXED)
        agree_with_gradients(f"loss {name}", f"verl {function.__name__}", got, want, ours, theirs)


@alike
@any_batch
def test_reinforce_and_topr(batch: Padded) -> None:
    """verl's REINFORCE takes its weights from its correction of log-probs at sampling: every token's own ratio for
    REINFORCE. TOPR is no loss of verl's; its two halves are: no weight for good samples, the sequence's ratio truncated
    at 1 for bad ones."""
    update, mask = update_of(batch), batch.mask.double()
    theirs = core.compute_policy_loss_reinforce

    def want(leaf: Tensor, weight: Tensor, rows: Tensor) -> Tensor:
        loss, _ = theirs(
            rollout_log_prob=update.old,
            log_prob=leaf,
            advantages=update.advantages,
            response_mask=mask * rows,
            loss_agg_mode="token-mean",
            config=actor(),
            rollout_is_weights=weight,
        )
        return loss * (mask * rows).sum() / mask.sum() if rows.any() else leaf.sum() * 0.0

    def weights(level: str, cap: float) -> Tensor:
        return correction.compute_rollout_correction_weights(update.new - update.old, mask, level, cap)[0]

    everything = torch.ones_like(mask)
    ours, other = update.leaf(), update.leaf()
    got = update.loss(ours, UpdateParams(loss="reinforce"), "token_mean")
    whole = want(other, weights("token", 1e9), everything)
    agree_with_gradients("loss reinforce", f"verl {theirs.__name__}", got, whole, ours, other)
    ours, other = update.leaf(), update.leaf()
    got = update.loss(ours, UpdateParams(loss="topr"), "token_mean")
    bad = (update.advantages < 0).double()
    whole = want(other, everything, 1 - bad) + want(other, weights("sequence", 1.0), bad)
    agree_with_gradients("loss topr", f"verl {theirs.__name__} of two halves", got, whole, ours, other)


@alike
@given(batches, st.sampled_from(sorted(AGGREGATES)))
def test_value(batch: Padded, how: str) -> None:
    update = update_of(batch)
    ours, theirs = ((update.values + update.new - update.old).requires_grad_() for _ in range(2))
    scale = FIXED if how == "sequence_sum_fixed" else None
    want, _ = core.compute_value_loss(
        theirs, update.returns, update.values, batch.mask.double(), 0.3, AGGREGATES[how], loss_scale_factor=scale
    )
    got = update.loss(ours, UpdateParams(loss="value", clip_value=0.3), how, FIXED)
    agree_with_gradients("loss value", "verl compute_value_loss", got, want, ours, theirs)


@alike
@given(batches, st.sampled_from(["k1", "k2", "k3"]))
def test_kl_and_its_gradient(batch: Padded, form: str) -> None:
    update = update_of(batch)
    ours, theirs = update.leaf(), update.leaf()
    got, want = KL[form](ours, update.reference), core.kl_penalty(theirs, update.reference, form)
    agree(f"kl {form}", "verl kl_penalty", got, want)
    agree_with_gradients(f"kl {form}", "verl kl_penalty", got.sum(), want.sum(), ours, theirs)


@alike
@given(batches, st.sampled_from(["k1", "k2", "k3"]))
def test_kl_in_the_loss(batch: Padded, form: str) -> None:
    """As verl's actor adds it (workers/utils/losses.py): agg_loss of the policy's, plus coef x agg_loss of the KL."""
    update = update_of(batch)
    params = UpdateParams(loss="reinforce", kl=KlParams(coef=0.2, form=form))
    ours, theirs = update.leaf(), update.leaf()
    terms = objective(ours, None, batch.mask, None, update.columns, params)
    got = numerator(terms.loss, batch.mask, "token_mean") / denominator(batch.mask, "token_mean")
    ratio = (theirs - update.old).exp().detach()
    policy = core.agg_loss(-ratio * update.advantages * theirs, batch.mask.double(), "token-mean")
    divergence = core.kl_penalty(theirs, update.reference, form)
    want = policy + 0.2 * core.agg_loss(divergence, batch.mask.double(), "token-mean")
    agree_with_gradients(f"objective with kl {form}", "verl agg_loss of kl_penalty", got, want, ours, theirs)


@alike
@given(batches, st.sampled_from(sorted(AGGREGATES)), st.integers(0, 4))
def test_aggregates(batch: Padded, how: str, emptied: int) -> None:
    """Rows that a correction rejected whole count in neither."""
    mask = batch.mask & (torch.arange(len(batch.mask)) >= emptied)[:, None]
    ours, theirs = (batch.normal().double().requires_grad_() for _ in range(2))
    theirs = ours.detach().clone().requires_grad_()
    got = numerator(ours, mask, how) / denominator(mask, how, FIXED)
    want = core.agg_loss(theirs, mask.double(), AGGREGATES[how], loss_scale_factor=FIXED)
    agree_with_gradients(f"aggregate {how}", "verl agg_loss", got, want, ours, theirs)


FLOOR, CAP = 0.6, 1.5


@alike
@given(batches, st.sampled_from(["token", "turn", "sample"]))
def test_corrections(batch: Padded, unit: str) -> None:
    """verl's weights are of a token or of a row. A turn of ours is a row of its own there. Its rejection is written in
    -log rho, so its bounds are ours turned over."""
    update = update_of(batch)
    rows = torch.arange(len(batch.mask))[:, None].expand_as(batch.mask)
    numbers, count = runs(batch.mask) if unit == "turn" else (rows, len(rows))
    level = "token" if unit == "token" else "sequence"
    ratio = torch.zeros(count, *batch.mask.shape, dtype=torch.float64)
    own = torch.zeros_like(ratio)
    at = batch.mask.nonzero(as_tuple=True)
    ratio[numbers[at], *at] = (update.old - update.rollout)[at]
    own[numbers[at], *at] = 1.0
    flat = (count, -1)

    def weights(bounds: float | str) -> Tensor:
        made, _ = correction.compute_rollout_correction_weights(ratio.view(flat), own.view(flat), level, bounds)
        return made.view_as(own).sum(0)

    mode, bounds = ("token_k1" if unit == "token" else "seq_sum_k1"), f"{1 / CAP}_{1 / FLOOR}"
    stays, _ = correction.compute_rollout_rejection_mask(ratio.view(flat), own.view(flat), mode, bounds)
    want = {
        "tis": (weights(CAP), batch.mask),
        "mis": (weights(f"{FLOOR}_{CAP}"), batch.mask),
        "reject": (stays.view_as(own).sum(0), stays.view_as(own).sum(0) > 0),
    }
    for name, (weight, left) in want.items():
        params = CorrectionParams(name=name, unit=unit, cap=CAP, floor=None if name == "tis" else FLOOR)
        got, mask = correct(update.old, update.rollout, batch.mask, [params])
        function = "rejection_mask" if name == "reject" else "correction_weights"
        agree(f"correction {name} of a {unit}", f"verl compute_rollout_{function}", got, weight)
        assert torch.equal(mask, left)


VOCAB = 11


def logits_of(batch: Padded) -> Tensor:
    return torch.randn((*batch.mask.shape, VOCAB), generator=batch.generator, dtype=torch.float64)


@alike
@any_batch
def test_log_probs_and_entropy(batch: Padded) -> None:
    logits, targets = logits_of(batch), torch.randint(VOCAB, batch.mask.shape, generator=batch.generator)
    weight = batch.normal().double()
    ours, theirs = (logits.clone().requires_grad_() for _ in range(2))
    log_probs, entropy = token_log_probs_and_entropy(ours, targets)
    wanted = functional.logprobs_from_logits_v2(theirs, targets)
    agree("log_probs", "verl logprobs_from_logits_v2", log_probs, wanted)
    agree("entropy", "verl entropy_from_logits", entropy, functional.entropy_from_logits(theirs))
    got = (weight * (log_probs + entropy)).sum()
    want = (weight * (wanted + functional.entropy_from_logits(theirs))).sum()
    name = "verl logprobs_from_logits_v2 + entropy_from_logits"
    agree_with_gradients("log_probs and entropy", name, got, want, ours, theirs)


@alike
@given(batches, st.integers(1, VOCAB))
def test_distill(batch: Padded, count: int) -> None:
    """verl's loss casts to float32, so batches are of float32."""
    teacher, student = logits_of(batch).float(), logits_of(batch).float()
    made, tokens = top_log_probs(teacher, count)
    ours, theirs = (student.clone().requires_grad_() for _ in range(2))
    own = chosen_log_probs(ours, tokens)
    terms = LOSSES["distill"](own, batch.mask, {"ref_top_log_probs": made}, UpdateParams(loss="distill"))
    at = batch.mask
    outputs = distillation.compute_forward_kl_topk(
        theirs[at][None],
        torch.nested.nested_tensor([made[at]], layout=torch.jagged),
        torch.nested.nested_tensor([tokens[at]], layout=torch.jagged),
        SimpleNamespace(distillation_loss=SimpleNamespace(log_prob_min_clamp=None)),
        "thd",
    )
    losses, mass = outputs["distillation_losses"], outputs["teacher_mass"]
    agree("loss distill, top_mass", "verl compute_forward_kl_topk", terms.metrics["top_mass"][at], mass[0])
    got, want = terms.loss[at].mean(), losses[0].mean()
    agree_with_gradients("loss distill", "verl compute_forward_kl_topk", got, want, ours, theirs)
