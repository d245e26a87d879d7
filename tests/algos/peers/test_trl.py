"""TRL 1.16.0: the losses of its trainers and what they are made of. The trainers' own functions run, on a stand-in for
the trainer that holds its settings and gives the log-probs in place of a model.

Where it differs by design: its CISPO caps the ratio from above alone (grpo_trainer.py, line 3110), so that ours gets a
lower clip of 1, which is none; its sequence-level ratio carries the gradient through the mean (line 3079), ours through
each token (GSPO-token), which is the same where a sample has one advantage; its distillation is over the whole
vocabulary, ours over the K likeliest, so that K is all of it.
"""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from flowrl.algos.aggregate import denominator, numerator
from flowrl.algos.corrections import correct
from flowrl.algos.estimators import Samples, estimate
from flowrl.algos.log_probs import chosen_log_probs, token_log_probs_and_entropy, top_log_probs
from flowrl.algos.losses import LOSSES
from flowrl.algos.objective import objective
from flowrl.graph.params import CorrectionParams, EstimateParams, KlParams, UpdateParams
from tests.algos.batches import Padded, padded
from tests.algos.peers.agreement import agree, agree_with_gradients
from tests.algos.peers.imports import peer
from tests.algos.peers.ragged import Update, alike, any_batch, batches, update_of

grpo = peer("trl.trainer.grpo_trainer").GRPOTrainer
reward = peer("trl.trainer.reward_trainer").RewardTrainer
distillation = peer("trl.experimental.gkd.gkd_trainer").GKDTrainer
online_dpo = peer("trl.experimental.online_dpo.online_dpo_trainer").OnlineDPOTrainer
functions = peer("trl.trainer.utils")

FIXED = 9
VOCAB = 11


def alone() -> SimpleNamespace:
    """An accelerator of one process."""

    def same(value: Tensor, **_: object) -> Tensor:
        return value

    return SimpleNamespace(
        num_processes=1,
        sync_gradients=True,
        gather=same,
        gather_for_metrics=same,
        reduce=same,
        backward=lambda loss, **_: loss.backward(),
    )


def loss_of(update: Update, leaf: Tensor, entropy: Tensor | None = None, **settings: Any) -> Tensor:
    """GRPOTrainer._compute_loss."""
    entropies = torch.zeros_like(leaf) if entropy is None else entropy
    weight = settings.pop("weight", None)
    trainer = SimpleNamespace(
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level=settings.pop("level", "token"),
        args=SimpleNamespace(use_bias_correction_kl=False, delta=None, steps_per_generation=1),
        model=SimpleNamespace(training=True),
        use_vllm=weight is not None,
        vllm_importance_sampling_correction=True,
        current_gradient_accumulation_steps=1,
        max_completion_length=FIXED,
        accelerator=alone(),
        use_adaptive_entropy=False,
        _entropy_bonus_enabled=entropy is not None,
        _metrics=defaultdict(lambda: defaultdict(list)),
        _get_per_token_logps_and_entropies=lambda *_, **__: (leaf, entropies, None),
        **{"beta": 0.0, "epsilon_low": 0.2, "epsilon_high": 0.28, "entropy_coef": 0.0} | settings,
    )
    rows, tokens = leaf.shape
    ids = torch.zeros(rows, tokens, dtype=torch.long)
    inputs = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": ids[:, :1] + 1,
        "completion_ids": ids,
        "completion_mask": update.mask.double(),
        "advantages": update.advantages,
        "old_per_token_logps": update.old,
        "ref_per_token_logps": update.reference,
        "num_items_in_batch": update.mask.sum(),
        "importance_sampling_ratio": weight,
    }
    return grpo._compute_loss(trainer, None, inputs)


PPO = UpdateParams(loss="ppo", clip_low=0.2, clip_high=0.28)
TYPES = {"grpo": "sequence_mean", "bnpo": "token_mean", "dapo": "token_mean", "dr_grpo": "sequence_sum_fixed"}


@pytest.mark.parametrize("kind", sorted(TYPES))
@alike
@any_batch
def test_clipped_losses_in_each_aggregate(kind: str, batch: Padded) -> None:
    update = update_of(batch)
    ours, theirs = update.leaf(), update.leaf()
    want = loss_of(update, theirs, loss_type=kind)
    got = update.loss(ours, PPO, TYPES[kind], FIXED)
    agree_with_gradients(f"loss ppo, {TYPES[kind]}", f"TRL GRPOTrainer loss_type {kind}", got, want, ours, theirs)


@alike
@any_batch
def test_gspo(batch: Padded) -> None:
    update = update_of(batch, whole=True)
    ours, theirs = update.leaf(), update.leaf()
    want = loss_of(update, theirs, loss_type="grpo", level="sequence", epsilon_low=0.1, epsilon_high=0.1)
    got = update.loss(ours, UpdateParams(loss="gspo", clip_low=0.1, clip_high=0.1), "sequence_mean")
    agree_with_gradients("loss gspo", "TRL GRPOTrainer, sequence level", got, want, ours, theirs)


@alike
@any_batch
def test_cispo(batch: Padded) -> None:
    update = update_of(batch)
    ours, theirs = update.leaf(), update.leaf()
    want = loss_of(update, theirs, loss_type="cispo", epsilon_high=1.28)
    got = update.loss(ours, UpdateParams(loss="cispo", clip_low=1.0, clip_high=0.28), "token_mean")
    agree_with_gradients("loss cispo", "TRL GRPOTrainer loss_type cispo", got, want, ours, theirs)


@alike
@given(batches, st.sampled_from([("bnpo", "token_mean"), ("grpo", "sequence_mean")]))
def test_kl_and_entropy_in_the_loss(batch: Padded, names: tuple[str, str]) -> None:
    """TRL's entropy is a mean over tokens in every aggregate, ours goes with the loss's: it is added to token_mean."""
    kind, how = names
    update = update_of(batch)
    coef = 0.3 if how == "token_mean" else 0.0
    entropies = [batch.normal().abs().double()]
    ours, theirs = update.leaf(), update.leaf()
    want = loss_of(update, theirs, entropies[0], loss_type=kind, beta=0.2, entropy_coef=coef)
    params = UpdateParams(loss="ppo", clip_low=0.2, clip_high=0.28, entropy_coef=coef, kl=KlParams(coef=0.2, form="k3"))
    terms = objective(ours, entropies[0], batch.mask, None, update.columns, params)
    got = numerator(terms.loss, batch.mask, how) / denominator(batch.mask, how)
    agree_with_gradients("objective with kl k3 and entropy", f"TRL GRPOTrainer {kind}", got, want, ours, theirs)


@alike
@any_batch
def test_a_correction_weighs_the_loss_alone(batch: Padded) -> None:
    update = update_of(batch)
    ours, theirs = update.leaf(), update.leaf()
    tis = CorrectionParams(name="tis", unit="token", cap=2.0)
    weight, mask = correct(update.old, update.rollout, batch.mask, [tis])
    want = loss_of(update, theirs, loss_type="bnpo", beta=0.2, weight=weight)
    params = UpdateParams(loss="ppo", clip_low=0.2, clip_high=0.28, kl=KlParams(coef=0.2, form="k3"))
    terms = objective(ours, None, mask, weight, update.columns, params)
    got = numerator(terms.loss, mask, "token_mean") / denominator(mask, "token_mean")
    agree_with_gradients("objective with a correction", "TRL GRPOTrainer bnpo", got, want, ours, theirs)


@alike
@any_batch
def test_bradley_terry(batch: Padded) -> None:
    """RewardTrainer.compute_loss: the first half of a batch is preferred to the second."""
    scores = batch.normal().double()[:, 0]
    ours, theirs = (scores.clone().requires_grad_() for _ in range(2))
    trainer = SimpleNamespace(
        model=SimpleNamespace(training=False),
        args=SimpleNamespace(center_rewards_coefficient=None),
        accelerator=alone(),
        _total_train_tokens=0,
        _metrics=defaultdict(lambda: defaultdict(list)),
    )
    want = reward.compute_loss(trainer, lambda **_: SimpleNamespace(logits=theirs[:, None]), {})
    pairs = len(scores) // 2
    sign = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat_interleave(pairs)
    columns = {"pair_sign": sign, "pair_group": torch.arange(pairs).double().repeat(2)}
    loss = LOSSES["bradley_terry"](ours, batch.mask, columns, UpdateParams(loss="bradley_terry")).loss
    agree_with_gradients("loss bradley_terry", "TRL RewardTrainer.compute_loss", loss.sum() / pairs, want, ours, theirs)


@alike
@given(padded(groups=5, samples=2, tokens=7))
def test_online_dpo_of_two_samples(batch: Padded) -> None:
    """OnlineDPOTrainer.training_step: two samples a prompt, the first half of a batch and the second; the better is
    chosen. Of two equal ones TRL prefers the first (line 1212); ours is a tie, and no pair."""
    rewards = batch.rewards.double() + torch.arange(len(batch.rewards)) * 1e-3
    update = update_of(batch)
    ours, theirs = update.leaf(), update.leaf()
    halves = torch.cat([torch.arange(0, 10, 2), torch.arange(1, 10, 2)])
    calls = iter([theirs[halves], update.reference[halves]])
    trainer = SimpleNamespace(
        args=SimpleNamespace(
            use_vllm=False,
            missing_eos_penalty=None,
            loss_type="sigmoid",
            torch_empty_cache_steps=None,
            optim="adamw",
            n_gpu=0,
            gradient_accumulation_steps=1,
        ),
        beta=0.3,
        eos_token_ids=[0],
        ref_model="reference",
        reward_funcs=[None],
        accelerator=alone(),
        state=SimpleNamespace(global_step=0),
        stats=defaultdict(list),
        processing_class=SimpleNamespace(batch_decode=lambda ids, **_: [""] * len(ids)),
        _generate=lambda *_: (halves, halves, torch.zeros(10, 7, dtype=torch.long), batch.mask[halves].long(), None),
        _forward=lambda *_: next(calls),
        _calculate_rewards_from_functions=lambda **_: rewards[halves],
    )
    want = online_dpo.training_step(trainer, SimpleNamespace(train=lambda: None), {"prompt": ["?"] * 5})
    assert theirs.grad is not None
    samples = Samples(rewards, batch.mask, batch.prompts)
    made = estimate(samples, EstimateParams(estimator="best_worst", normalize="none"))
    columns = update.columns | {"pair_sign": made["pair_sign"], "pair_group": batch.prompts.double()}
    got = LOSSES["dpo"](ours, batch.mask, columns, UpdateParams(loss="dpo", beta=0.3)).loss.sum() / 5
    (slope,) = torch.autograd.grad(got, ours)
    name = "TRL OnlineDPOTrainer.training_step"
    agree("estimator best_worst, loss dpo", name, got, want)
    agree("estimator best_worst, loss dpo, gradient", name, slope, theirs.grad)


def logits_of(batch: Padded) -> Tensor:
    return torch.randn((*batch.mask.shape, VOCAB), generator=batch.generator, dtype=torch.float64)


@alike
@given(batches, st.sampled_from([1.0, 0.7]))
def test_distill_over_the_whole_vocabulary(batch: Padded, temperature: float) -> None:
    teacher, student = logits_of(batch), logits_of(batch)
    ours, theirs = (student.clone().requires_grad_() for _ in range(2))
    labels = torch.where(batch.mask, 0, -100)
    want = distillation.generalized_jsd_loss(theirs, teacher, labels, beta=0, temperature=temperature)
    made, tokens = top_log_probs(teacher, VOCAB, temperature)
    own = chosen_log_probs(ours, tokens, temperature)
    terms = LOSSES["distill"](own, batch.mask, {"ref_top_log_probs": made}, UpdateParams(loss="distill"))
    got = terms.loss[batch.mask].mean()
    agree_with_gradients("loss distill", "TRL GKDTrainer.generalized_jsd_loss", got, want, ours, theirs)


@alike
@given(batches, st.sampled_from([1.0, 0.7]))
def test_log_probs_and_entropy(batch: Padded, temperature: float) -> None:
    logits, targets = logits_of(batch), torch.randint(VOCAB, batch.mask.shape, generator=batch.generator)
    ours, theirs = (logits.clone().requires_grad_() for _ in range(2))
    wanted = functions.selective_log_softmax_and_entropy(theirs, targets, temperature=temperature)
    made = token_log_probs_and_entropy(ours, targets, temperature)
    name = "TRL selective_log_softmax_and_entropy"
    for what, got, want in zip(("log_probs", "entropy"), made, wanted, strict=True):
        agree(what, name, got, want)
    weight = batch.normal().double()
    got, want = ((weight * (each[0] + each[1])).sum() for each in (made, wanted))
    agree_with_gradients("log_probs and entropy", name, got, want, ours, theirs)
    several = torch.randint(VOCAB, (*batch.mask.shape, 3), generator=batch.generator)
    chosen, want = chosen_log_probs(ours, several), functions.selective_log_softmax(theirs, several)
    agree("log_probs of several tokens", "TRL selective_log_softmax", chosen, want)
