"""verl-agent, where GiGPO was published, and RAGEN, where StarPO-S and the GAE of two levels were: neither is in a
package registry, so that a checkout of each is named on PYTHONPATH (imports.HOW).

Where they differ by design: a row of verl-agent's is one turn, ours a whole sample, and its mean over a prompt's
episodes counts each as often as it has turns unless `compute_mean_std_cross_steps` is false, which is equation 3 of the
paper and ours. RAGEN finds the turns by their rewards, which must not be 0; its filter keeps at least one group, and
its spread is a sample's (n - 1), which among groups of one size is the same order.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from flowrl.algos.estimators import Samples, estimate
from flowrl.algos.filters import kept
from flowrl.algos.ragged import runs
from flowrl.algos.turns import on_last_tokens, rows_of_turns
from flowrl.graph.params import EstimateParams, FilterParams
from tests.algos.batches import Padded
from tests.algos.peers.agreement import agree
from tests.algos.peers.imports import peer
from tests.algos.peers.ragged import alike, any_batch, batches

core = peer("ragen.trainer.core_algos", bare=["ragen", "ragen.trainer"])
filtering = peer("ragen.trainer.rollout_filter", bare=["ragen", "ragen.trainer"])
agents = peer("gigpo.core_gigpo", bare=["gigpo"])


def turns_of(batch: Padded) -> tuple[Tensor, Tensor]:
    """Rewards of turns, none of them 0, and the state of each, of three."""
    count = runs(batch.mask)[1]
    rewards = torch.randn(count, generator=batch.generator).double()
    return rewards + rewards.sign() * 0.01, torch.randint(3, (count,), generator=batch.generator)


def samples_of(batch: Padded, rewards: Tensor, states: Tensor) -> Samples:
    whole = torch.zeros(len(batch.mask), dtype=torch.float64).index_add(0, rows_of_turns(batch.mask), rewards)
    values = batch.normal().double()
    return Samples(whole, batch.mask, batch.prompts, values=values, turn_rewards=rewards, state_keys=states)


@alike
@given(batches, st.sampled_from([("group", "mean_std_norm"), ("none", "mean_norm")]), st.sampled_from([1.0, 0.9]))
def test_gigpo(batch: Padded, names: tuple[str, str], gamma: float) -> None:
    rewards, states = turns_of(batch)
    rewards = rewards.float().double()
    samples = samples_of(batch, rewards, states)
    normalize, mode = names
    extra = {"step_weight": 0.8}
    got = estimate(samples, EstimateParams(estimator="gigpo", normalize=normalize, gamma=gamma, extra=extra))
    rows, numbers = rows_of_turns(batch.mask), runs(batch.mask)[0]
    mask = torch.stack([numbers == turn for turn in range(len(rows))]).any(1).double()
    turns = SimpleNamespace(
        non_tensor_batch={
            "rewards": rewards.numpy(),
            "traj_uid": rows.numpy(),
            "active_masks": np.ones(len(rows)),
            "env_step": np.arange(len(rows)),
        },
        batch={"input_ids": torch.zeros(1)},
    )
    whole = torch.nn.functional.pad(samples.rewards[rows][:, None], (0, mask.shape[1] - 1))
    prompts, remove_std = batch.prompts[rows].numpy(), mode == "mean_norm"
    episodes = agents.episode_norm_reward(
        whole, mask, prompts, rows.numpy(), remove_std=remove_std, compute_mean_std_cross_steps=False
    )
    returns = agents.compute_step_discounted_returns(turns, gamma)
    anchors = agents.build_step_group(states.numpy(), prompts)
    want = episodes + 0.8 * agents.step_norm_reward(returns, mask, anchors, remove_std=remove_std)
    own = got["advantages"][rows] * mask
    agree("estimator gigpo", "verl-agent episode_norm_reward + step_norm_reward", own, want.double())


@alike
@given(batches, st.sampled_from([1.0, 0.9]), st.sampled_from([1.0, 0.7]), st.sampled_from([1.0, 0.95]))
def test_bi_level_gae(batch: Padded, gamma: float, lam: float, turn_gamma: float) -> None:
    rewards, states = turns_of(batch)
    samples = samples_of(batch, rewards.float().double(), states)
    assert samples.values is not None
    assert samples.turn_rewards is not None
    params = EstimateParams(
        estimator="bi_level_gae", normalize="batch", gamma=gamma, lam=lam, extra={"turn_gamma": turn_gamma}
    )
    got = estimate(samples, params)
    mask = batch.mask.double()
    tokens = on_last_tokens(samples.turn_rewards, batch.mask)
    advantages, returns = core.compute_bi_level_gae_advantage_return(
        tokens, samples.values, mask, gamma, lam, turn_gamma
    )
    name = "RAGEN compute_bi_level_gae_advantage_return"
    agree("estimator bi_level_gae", name, got["advantages"], advantages.double() * mask)
    agree("estimator bi_level_gae, returns", name, got["returns"], returns.double() * mask)


def theirs(values: Tensor, groups: int, **settings: Any) -> Tensor:
    """Which samples RAGEN's filter keeps, bool [rows]: groups one after the other, all of one size."""
    size = len(values) // groups
    options = {"filter_type": "largest", "group_size": size, "num_groups": groups, "strategy": "top_k"} | settings
    chosen = filtering.RolloutFilter(filtering.RolloutFilterConfig(**options))
    spread = values.view(groups, size).std(dim=-1)
    return chosen._groups_to_mask(chosen._select_top_groups(spread))


@alike
@given(st.integers(2, 9), st.integers(2, 5), st.sampled_from([0.25, 0.5, 0.75, 1.0]), st.integers(0, 2**31))
def test_filters_of_spread(groups: int, size: int, share: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(groups * size, generator=generator)
    equal = torch.rand(groups, generator=generator) < 0.4
    values = torch.where(equal.repeat_interleave(size), torch.ones(()), values)
    prompts = np.repeat(np.arange(groups), size)
    numbers = values.double().numpy()

    def ours(rule: str, **keys: Any) -> Tensor:
        return torch.from_numpy(kept(numbers, prompts, FilterParams(rule=rule, unit="group", **keys))).double()

    spread = theirs(values, groups, value=1.0, include_zero=False).double()
    agree("filter zero_spread", "RAGEN RolloutFilter include_zero=False", ours("zero_spread"), spread)
    if int(share * groups) <= int((~equal).sum()) and share * groups >= 1:
        top = theirs(values, groups, value=share, include_zero=True).double()
        agree("filter spread", "RAGEN RolloutFilter top_k", ours("spread", keep_top=share), top)


@alike
@any_batch
def test_grpo_with_rows_counted_once(batch: Padded) -> None:
    samples = samples_of(batch, *turns_of(batch))
    got = estimate(samples, EstimateParams(estimator="grpo", normalize="group"))["advantages"]
    rewards = torch.nn.functional.pad(samples.rewards[:, None], (0, batch.mask.shape[1] - 1))
    want, _ = core.compute_grpo_outcome_advantage(rewards, batch.mask.double(), batch.prompts.numpy())
    agree("estimator grpo", "RAGEN compute_grpo_outcome_advantage", got, want)
