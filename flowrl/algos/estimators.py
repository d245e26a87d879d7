"""Advantage estimators. Pure functions on the rows of one firing: a group, or the whole step where they whiten over it.

A firing's rows come as `Samples`; out come `advantages` (and `returns`), float32 [rows, tokens], 0 where the mask is
false. Reward r_i of row i is one number, or one a token for process rewards. A KL in the reward is subtracted token by
token before anything else: r_{i,t} = r_{i,t} - coef x KL_{i,t}; estimators of whole samples take the sum over t.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from flowrl.algos.kl import KL
from flowrl.algos.pairs import best_and_worst
from flowrl.algos.ragged import dense, group_mean, group_std, group_sum, masked_sum, whiten
from flowrl.algos.turns import bi_level_gae as gae_of_turns
from flowrl.algos.turns import gigpo as two_levels
from flowrl.algos.turns import turn_sums
from flowrl.graph.params import EstimateParams

EPSILON = 1e-6
"""Added to a standard deviation that divides."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Rows of one firing. Tensors are float32, mask bool, prompts int64."""

    rewards: Tensor
    """[rows], or [rows, tokens] for process rewards."""
    mask: Tensor
    """[rows, tokens]: the policy's own tokens."""
    prompts: Tensor
    """[rows]: ids of the rows' prompts; equal ids are a group."""
    values: Tensor | None = None
    """[rows, tokens]: value of the state in which each token was chosen."""
    baseline_rewards: Tensor | None = None
    """[rows]."""
    old_log_probs: Tensor | None = None
    """[rows, tokens], as ref_log_probs; read by a KL in the reward."""
    ref_log_probs: Tensor | None = None
    turn_rewards: Tensor | None = None
    """[turns], one for each run of true in `mask`, row after row (algos/turns.py)."""
    state_keys: Tensor | None = None
    """int64 [turns]: what the state of each turn is known by."""


Estimates = dict[str, Tensor]
"""By column: float32 [rows, tokens], or [rows] for a column of a sample. `keep`, bool [rows], is no column: where it is
given, rows without it leave the step."""
Estimator = Callable[[Samples, EstimateParams], Estimates]


def estimate(samples: Samples, params: EstimateParams) -> Estimates:
    """What `params.estimator` makes of the rows, with its KL in the reward."""
    if params.kl is not None and params.kl.coef != 0:
        penalised = with_kl(samples, params.kl.coef, params.kl.form)
        turns = samples.turn_rewards
        if turns is not None:
            turns = turns + turn_sums(penalised - token_rewards(samples), samples.mask)
        samples = replace(samples, rewards=penalised, turn_rewards=turns)
    return ESTIMATORS[params.estimator](samples, params)


def with_kl(samples: Samples, coef: float, form: str) -> Tensor:
    """Token rewards [rows, tokens] less coef x KL(old || reference) (Ouyang et al. 2022; Ziegler et al. 2019)."""
    old, reference = _tokens(samples.old_log_probs, samples), _tokens(samples.ref_log_probs, samples)
    return token_rewards(samples) - coef * KL[form](old, reference)


def token_rewards(samples: Samples) -> Tensor:
    """Rewards [rows, tokens]: a reward of the sample stands on the last of its own tokens."""
    if samples.rewards.dim() == 2:
        return _tokens(samples.rewards, samples)
    mask = samples.mask
    after = mask.flip(-1).cumsum(-1).flip(-1)
    return torch.where(mask & (after == 1), samples.rewards[:, None], torch.zeros_like(mask, dtype=torch.float32))


def sample_rewards(samples: Samples) -> Tensor:
    """Rewards [rows]."""
    return samples.rewards if samples.rewards.dim() == 1 else masked_sum(samples.rewards, samples.mask)


def grpo(samples: Samples, params: EstimateParams) -> Estimates:
    """r_i - mean of the group, over its standard deviation with `normalize: group` (GRPO, Shao et al. 2024, section
    4.1), over the batch's with `batch` (Liu et al. 2025, "Tricks or traps"), over nothing with `none` (Dr. GRPO)."""
    rewards = sample_rewards(samples)
    groups, count = dense(samples.prompts)
    advantages = rewards - group_mean(rewards, groups, count)
    if params.normalize == "group":
        advantages = advantages / (group_std(rewards, groups, count) + EPSILON)
    elif params.normalize == "batch":
        whole = torch.zeros_like(groups)
        advantages = advantages / (group_std(rewards, whole, 1) + EPSILON)
    return _spread(advantages, samples)


def rloo(samples: Samples, params: EstimateParams) -> Estimates:
    """r_i less the mean of the others of its group (Ahmadian et al. 2024): n / (n - 1) x (r_i - mean); 0 if alone."""
    rewards = sample_rewards(samples)
    groups, count = dense(samples.prompts)
    sizes = group_sum(torch.ones_like(rewards), groups, count)[groups]
    centred = rewards - group_mean(rewards, groups, count)
    return _spread(_normalised(centred * sizes / (sizes - 1).clamp(min=1), groups, count, params), samples)


def opo(samples: Samples, params: EstimateParams) -> Estimates:
    """r_i less the group's mean weighted by length, sum l_i r_i / sum l_i (Hao et al. 2025, "On-policy RL with optimal
    reward baseline")."""
    rewards = sample_rewards(samples)
    groups, count = dense(samples.prompts)
    lengths = samples.mask.sum(dim=-1).to(rewards.dtype)
    weighted = group_sum(lengths * rewards, groups, count) / group_sum(lengths, groups, count).clamp(min=1)
    return _spread(_normalised(rewards - weighted[groups], groups, count, params), samples)


def raft(samples: Samples, params: EstimateParams) -> Estimates:
    """1 for the best of each group, the first of equals, and 0 for the others: with the loss `reinforce` or `ppo` on
    policy the gradient of supervised training on the best (RAFT, Dong et al. 2023, algorithm 1)."""
    rewards = sample_rewards(samples)
    groups, count = dense(samples.prompts)
    highest = rewards.new_full((count,), -torch.inf).scatter_reduce(0, groups, rewards, "amax")
    places = torch.arange(len(rewards), device=rewards.device)
    is_best = rewards == highest[groups]
    first = torch.full((count,), len(rewards), device=rewards.device)
    first = first.scatter_reduce(0, groups, torch.where(is_best, places, len(rewards)), "amin")
    return _spread((places == first[groups]).to(rewards.dtype), samples)


def best_worst(samples: Samples, params: EstimateParams) -> Estimates:
    """`pair_sign`, float32 [rows]: 1 for the best and -1 for the worst of each group, which are all that is kept
    (pairs.best_and_worst)."""
    signs, picked = best_and_worst(sample_rewards(samples), samples.prompts)
    return {"pair_sign": signs, "keep": picked}


def reinforce_pp_baseline(samples: Samples, params: EstimateParams) -> Estimates:
    """r_i less the mean of the group, whitened over the tokens of the batch (Hu et al. 2025, REINFORCE++)."""
    rewards = sample_rewards(samples)
    groups, count = dense(samples.prompts)
    centred = rewards - group_mean(rewards, groups, count)
    return _whitened(_spread(centred, samples)["advantages"], samples, params)


def remax(samples: Samples, params: EstimateParams) -> Estimates:
    """r_i less the reward of the greedy response to its prompt (Li et al. 2024)."""
    assert samples.baseline_rewards is not None
    centred = sample_rewards(samples) - samples.baseline_rewards
    return _whitened(_spread(centred, samples)["advantages"], samples, params)


def reinforce(samples: Samples, params: EstimateParams) -> Estimates:
    """Discounted rewards to go, R_t = r_t + gamma R_{t+1}, over the policy's own tokens (Williams 1992). They are the
    returns, and the advantages; `normalize: batch` whitens the advantages (REINFORCE++, Hu et al. 2025)."""
    rewards = token_rewards(samples)
    mask = samples.mask
    returns = torch.zeros_like(rewards)
    later = rewards.new_zeros(len(rewards))
    for t in range(rewards.shape[1] - 1, -1, -1):
        later = torch.where(mask[:, t], rewards[:, t] + params.gamma * later, later)
        returns[:, t] = torch.where(mask[:, t], later, torch.zeros_like(later))
    return {"returns": returns} | _whitened(returns, samples, params)


def gae(samples: Samples, params: EstimateParams) -> Estimates:
    """Generalised advantage estimation (Schulman et al. 2016, equation 16) over the policy's own tokens:
    A_t = d_t + gamma lam A_{t+1} with d_t = r_t + gamma V_{t+1} - V_t, and V = 0 after the last; returns = A + V.
    `normalize: batch` whitens the advantages, not the returns. Observations between turns are passed over."""
    rewards, values = token_rewards(samples), _tokens(samples.values, samples)
    mask = samples.mask
    advantages = torch.zeros_like(rewards)
    later = rewards.new_zeros(len(rewards))
    next_value = torch.zeros_like(later)
    for t in range(rewards.shape[1] - 1, -1, -1):
        own = mask[:, t]
        delta = rewards[:, t] + params.gamma * next_value - values[:, t]
        later = torch.where(own, delta + params.gamma * params.lam * later, later)
        next_value = torch.where(own, values[:, t], next_value)
        advantages[:, t] = torch.where(own, later, torch.zeros_like(later))
    return {"returns": advantages + values} | _whitened(advantages, samples, params)


def gigpo(samples: Samples, params: EstimateParams) -> Estimates:
    """GiGPO (algos/turns.py). The KL in the reward, if any, is of the turn in which its tokens stand."""
    assert samples.turn_rewards is not None
    assert samples.state_keys is not None
    return {
        "advantages": two_levels(
            sample_rewards(samples),
            samples.turn_rewards,
            samples.state_keys,
            samples.mask,
            samples.prompts,
            gamma=params.gamma,
            step_weight=float(params.extra.get("step_weight", 1.0)),
            normalize=params.normalize,
        )
    }


def bi_level_gae(samples: Samples, params: EstimateParams) -> Estimates:
    """GAE over turns and within them (algos/turns.py); returns = A + V. `normalize: batch` whitens the advantages, not
    the returns."""
    assert samples.turn_rewards is not None
    values = _tokens(samples.values, samples)
    turn_gamma = float(params.extra.get("turn_gamma", 1.0))
    advantages = gae_of_turns(
        samples.turn_rewards, values, samples.mask, gamma=params.gamma, lam=params.lam, turn_gamma=turn_gamma
    )
    return {"returns": advantages + values} | _whitened(advantages, samples, params)


def reverse_kl(samples: Samples, params: EstimateParams) -> Estimates:
    """coef x (log ref - log old) of each token: minimises KL(policy || reference) on sampled tokens (on-policy
    distillation, Agarwal et al. 2024; Gu et al. 2024)."""
    difference = _tokens(samples.ref_log_probs, samples) - _tokens(samples.old_log_probs, samples)
    return {"advantages": float(params.extra.get("coef", 1.0)) * difference}


ESTIMATORS: dict[str, Estimator] = {
    "grpo": grpo,
    "dr_grpo": grpo,
    "rloo": rloo,
    "opo": opo,
    "raft": raft,
    "reinforce_pp_baseline": reinforce_pp_baseline,
    "gae": gae,
    "gigpo": gigpo,
    "bi_level_gae": bi_level_gae,
    "reinforce": reinforce,
    "reinforce_pp": reinforce,
    "remax": remax,
    "reverse_kl": reverse_kl,
    "best_worst": best_worst,
}
"""dr_grpo is grpo and reinforce_pp is reinforce with another default of `normalize` (graph/signatures.py)."""


def _tokens(values: Tensor | None, samples: Samples) -> Tensor:
    """A token column with 0 where the mask is false, so that what stands there never matters."""
    assert values is not None
    return torch.where(samples.mask, values, torch.zeros_like(values))


def _spread(advantages: Tensor, samples: Samples) -> Estimates:
    """The sample's number on each of its own tokens."""
    mask = samples.mask
    return {"advantages": torch.where(mask, advantages[:, None], torch.zeros_like(advantages)[:, None])}


def _normalised(advantages: Tensor, groups: Tensor, count: int, params: EstimateParams) -> Tensor:
    """Over the standard deviation of the advantages, of the group or the batch."""
    if params.normalize == "none":
        return advantages
    if params.normalize == "batch":
        groups, count = torch.zeros_like(groups), 1
    return advantages / (group_std(advantages, groups, count) + EPSILON)


def _whitened(advantages: Tensor, samples: Samples, params: EstimateParams) -> Estimates:
    """Whitened over all tokens of the batch, or over each group's."""
    if params.normalize == "none":
        return {"advantages": advantages}
    if params.normalize == "batch":
        return {"advantages": whiten(advantages, samples.mask)}
    groups, count = dense(samples.prompts)
    white = torch.zeros_like(advantages)
    for group in range(count):
        white += whiten(advantages, samples.mask & (groups == group)[:, None])
    return {"advantages": white}
