"""AReaL 1.0.4: utils/functional/functional.py, an implementation apart from verl's and TRL's.

Where it differs by design: rejection there keeps the ratio as a weight (line 404), ours has weight 1, so that its mask
is compared with `reject` and its weight with `mis`; its loss keeps the denominator of before the rejection (line 494);
and a dual clip there bounds the loss of good samples too, by c A (line 544: sign(A) c A), which every loss of -A r is
below, so that advantages of the dual clip are negative here.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flowrl.algos.corrections import correct
from flowrl.algos.kl import KL
from flowrl.algos.losses import LOSSES
from flowrl.algos.ragged import runs
from flowrl.graph.params import CorrectionParams, UpdateParams
from tests.algos.batches import Padded
from tests.algos.peers.agreement import agree, agree_with_gradients
from tests.algos.peers.imports import peer
from tests.algos.peers.ragged import alike, any_batch, batches, update_of

BARE = ["areal.utils.functional", "areal.api", "areal.infra", "areal.engine", "areal.engine.fsdp_utils"]
functions = peer("areal.utils.functional.functional", bare=BARE)
settings_of = peer("areal.api.cli_args", bare=BARE)
data = peer("areal.utils.data", bare=BARE)

FLOOR, CAP = 0.6, 1.5


@alike
@given(batches, st.sampled_from([None, 1.5]))
def test_ppo(batch: Padded, dual: float | None) -> None:
    update = update_of(batch)
    advantages = update.advantages if dual is None else -update.advantages.abs()
    ours, theirs = update.leaf(), update.leaf()
    want, _ = functions.ppo_actor_loss_fn(
        theirs, update.old, update.old, advantages, 0.2, batch.mask, eps_clip_higher=0.28, c_clip=dual
    )
    params = UpdateParams(loss="ppo", clip_low=0.2, clip_high=0.28, clip_dual=dual)
    terms = LOSSES["ppo"](ours, batch.mask, update.columns | {"advantages": advantages}, params)
    got = terms.loss[batch.mask].mean()
    agree_with_gradients("loss ppo", "AReaL ppo_actor_loss_fn", got, want, ours, theirs)


@alike
@any_batch
def test_gspo(batch: Padded) -> None:
    update = update_of(batch, whole=True)
    ours, theirs = update.leaf(), update.leaf()
    want, _ = functions.ppo_actor_loss_fn(
        theirs, update.old, update.old, update.advantages, 0.1, batch.mask, importance_sampling_level="sequence"
    )
    got = update.loss(ours, UpdateParams(loss="gspo", clip_low=0.1, clip_high=0.1), "token_mean")
    agree_with_gradients("loss gspo", "AReaL ppo_actor_loss_fn", got, want, ours, theirs)


@alike
@any_batch
def test_value(batch: Padded) -> None:
    """It asks for float32."""
    update = update_of(batch)
    old, returns = update.values.float(), update.returns.float()
    new = (update.values + update.new - update.old).float()
    ours, theirs = (new.clone().requires_grad_() for _ in range(2))
    want, _ = functions.ppo_critic_loss_fn(theirs, old, returns, 0.3, batch.mask)
    columns = {"values": old, "returns": returns}
    terms = LOSSES["value"](ours, batch.mask, columns, UpdateParams(loss="value", clip_value=0.3))
    got = terms.loss[batch.mask].mean()
    agree_with_gradients("loss value", "AReaL ppo_critic_loss_fn", got, want, ours, theirs)


@alike
@any_batch
def test_dpo(batch: Padded) -> None:
    """Its log-probs of a pair are sums over packed sequences whose masks are one place later; its loss casts to
    float32."""
    update = update_of(batch)
    ours, theirs = update.leaf(), update.leaf()
    rows, tokens = batch.mask.shape
    shifted = torch.nn.functional.pad(batch.mask, (1, 0))
    policy, reference, _ = functions.dpo_pair_logratios(
        torch.nn.functional.pad(theirs, (0, 1)).reshape(-1),
        torch.nn.functional.pad(update.reference, (0, 1)).reshape(-1),
        torch.arange(rows + 1) * (tokens + 1),
        shifted.reshape(-1),
        torch.ones(rows // 2, dtype=torch.bool),
    )
    delta = (policy[:, 0] - policy[:, 1]) - (reference[:, 0] - reference[:, 1])
    want = functions.dpo_preference_loss(delta, beta=0.3).double()
    sign = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(rows // 2)
    columns = update.columns | {"pair_sign": sign, "pair_group": torch.arange(rows).double() // 2}
    loss = LOSSES["dpo"](ours, batch.mask, columns, UpdateParams(loss="dpo", beta=0.3)).loss
    agree("loss dpo", "AReaL dpo_preference_loss", loss[::2], want)
    agree_with_gradients("loss dpo, mean", "AReaL dpo_preference_loss", loss[::2].mean(), want.mean(), ours, theirs)


@alike
@given(batches, st.sampled_from(["token", "turn", "sample"]))
def test_corrections(batch: Padded, unit: str) -> None:
    """A packed sequence of its is a turn of ours; its log-ratios are of float32."""
    update = update_of(batch)
    at = batch.mask
    numbers = runs(batch.mask)[0] if unit == "turn" else torch.arange(len(at))[:, None].expand_as(at)
    lengths = torch.bincount(numbers[at])
    bounds = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    level, flat = ("token" if unit == "token" else "sequence"), torch.ones(int(at.sum()))

    def theirs(action: str) -> object:
        options = settings_of.RejectionSamplingConfig(
            level=level,
            action=action,
            metric="ratio",
            agg="mean" if unit == "token" else "sum",
            upper=CAP,
            lower=FLOOR,
        )
        return functions.apply_rejection_sampling(update.old[at], update.rollout[at], flat, bounds, options)

    def own(name: str) -> tuple[torch.Tensor, torch.Tensor]:
        return correct(update.old, update.rollout, at, [CorrectionParams(name=name, unit=unit, cap=CAP, floor=FLOOR)])

    masked = theirs("mask")
    function = "AReaL apply_rejection_sampling"
    agree(f"correction reject of a {unit}", function, own("reject")[1][at].double(), masked.loss_mask)  # type: ignore[attr-defined]
    if unit == "token":
        agree("correction mis of a token", function, own("mis")[0][at], masked.behave_imp_weight)  # type: ignore[attr-defined]
        clamped = theirs("clamp").behave_imp_weight  # type: ignore[attr-defined]
        agree("correction tis of a token", function, own("tis")[0][at], clamped)


@pytest.mark.parametrize("form", ["k1", "k2", "k3"])
@alike
@any_batch
def test_kl(form: str, batch: Padded) -> None:
    update = update_of(batch)
    new, reference = update.new.float(), update.reference.float()
    want = data.KLEstimator._compute_approx_kl(new, reference, form, apply_clamp=False)
    agree(f"kl {form}", "AReaL KLEstimator", KL[form](new, reference), want)
