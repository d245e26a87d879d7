"""Advantages of turns: GiGPO's two levels, GAE on two levels. Pure functions on padded rows.

A turn is a run of true in a row's mask. A turn column is flat, float [turns], one value for each turn of all rows, row
after row: as the columns of an environment are (backends/batch.py).
"""

from __future__ import annotations

import torch
from torch import Tensor

from flowrl.algos.ragged import dense, group_mean, group_std, group_sum, runs

EPSILON = 1e-6
"""Added to a standard deviation that divides, as algos.estimators does."""


def rows_of_turns(mask: Tensor) -> Tensor:
    """The row of each turn: int64 [turns]."""
    numbers, count = runs(mask)
    rows = torch.arange(len(mask), device=mask.device)[:, None].expand_as(mask)
    found = rows.new_zeros(count + 1).scatter(0, numbers.reshape(-1), rows.reshape(-1))
    return found[:count]


def on_last_tokens(turns: Tensor, mask: Tensor) -> Tensor:
    """The value of each turn on the last of its tokens, 0 elsewhere: [rows, tokens]."""
    numbers = _numbered(turns, mask)
    after = torch.nn.functional.pad(mask[:, 1:], (0, 1))
    return torch.where(mask & ~after, _taken(turns, numbers), turns.new_zeros(()))


def on_all_tokens(turns: Tensor, mask: Tensor) -> Tensor:
    """The value of each turn on each of its tokens, 0 elsewhere: [rows, tokens]."""
    return torch.where(mask, _taken(turns, _numbered(turns, mask)), turns.new_zeros(()))


def turn_sums(tokens: Tensor, mask: Tensor) -> Tensor:
    """Sums of a token column over each turn: [turns]."""
    numbers, count = runs(mask)
    values = torch.where(mask, tokens, torch.zeros_like(tokens))
    return group_sum(values.reshape(-1), numbers.reshape(-1), count + 1)[:count]


def returns_to_go(turn_rewards: Tensor, rows: Tensor, gamma: float) -> Tensor:
    """R_k = r_k + gamma R_{k+1} within each row: [turns]."""
    returns = torch.zeros_like(turn_rewards)
    for k in range(len(turn_rewards) - 1, -1, -1):
        goes_on = k + 1 < len(rows) and bool(rows[k + 1] == rows[k])
        returns[k] = turn_rewards[k] + (gamma * returns[k + 1] if goes_on else 0.0)
    return returns


def gigpo(
    rewards: Tensor,
    turn_rewards: Tensor,
    state_keys: Tensor,
    mask: Tensor,
    prompts: Tensor,
    *,
    gamma: float,
    step_weight: float,
    normalize: str,
) -> Tensor:
    """A^E + step_weight x A^S on each token of a turn: [rows, tokens] (GiGPO, Feng et al. 2025, arXiv:2505.10978,
    equations 3, 6, 7 and 8).

    A^E compares the rewards [rows] of the samples of a prompt. A^S compares the discounted returns of all turns of
    those samples that were taken in one state, the anchor: turns of one prompt with equal `state_keys`, int64 [turns].
    A state that only one turn was taken in says nothing. Each is less its group's mean, over its group's standard
    deviation with `normalize: group`, over that of all with `batch`, over nothing with `none`.
    """
    episodes, count = dense(prompts)
    of_episode = _relative(rewards, episodes, count, normalize)
    rows = rows_of_turns(mask)
    states = dense_pairs(episodes[rows], state_keys)
    of_turn = _relative(returns_to_go(turn_rewards, rows, gamma), *states, normalize)
    return on_all_tokens(of_episode[rows] + step_weight * of_turn, mask)


def dense_pairs(first: Tensor, second: Tensor) -> tuple[Tensor, int]:
    """A number for each pair of values, and how many pairs there are."""
    return dense(torch.stack([first, second], dim=-1).unique(dim=0, return_inverse=True)[1])


def bi_level_gae(
    turn_rewards: Tensor, values: Tensor, mask: Tensor, *, gamma: float, lam: float, turn_gamma: float
) -> Tensor:
    """GAE over turns, and within each turn over its tokens: advantages [rows, tokens] (VAGEN, Wang et al. 2025,
    arXiv:2510.16907, bi-level GAE; RAGEN has the same).

    With V_k the value on the last token of turn k, and V = 0 after the last turn, turns have
    A_k = d_k + turn_gamma lam A_{k+1}, d_k = r_k + turn_gamma V_{k+1} - V_k. The last token of a turn has A_k, and the
    tokens before it A_t = gamma V_{t+1} - V_t + gamma lam A_{t+1}.
    """
    values = torch.where(mask, values, torch.zeros_like(values))
    rewards = on_last_tokens(turn_rewards.to(values.dtype), mask)
    ends = mask & ~torch.nn.functional.pad(mask[:, 1:], (0, 1))
    advantages = torch.zeros_like(values)
    turn, turn_value, later, later_value = (values.new_zeros(len(values)) for _ in range(4))
    for t in range(values.shape[1] - 1, -1, -1):
        own, end, value = mask[:, t], ends[:, t], values[:, t]
        of_turn = rewards[:, t] + turn_gamma * turn_value - value + turn_gamma * lam * turn
        turn, turn_value = torch.where(end, of_turn, turn), torch.where(end, value, turn_value)
        of_token = torch.where(end, of_turn, gamma * later_value - value + gamma * lam * later)
        later, later_value = torch.where(own, of_token, later), torch.where(own, value, later_value)
        advantages[:, t] = torch.where(own, of_token, torch.zeros_like(value))
    return advantages


def _relative(values: Tensor, groups: Tensor, count: int, normalize: str) -> Tensor:
    centred = values - group_mean(values, groups, count)
    if normalize == "none":
        return centred
    if normalize == "batch":
        groups, count = torch.zeros_like(groups), 1
    return centred / (group_std(values, groups, count) + EPSILON)


def _numbered(turns: Tensor, mask: Tensor) -> Tensor:
    """The turn of each token; `len(turns)` outside. Raises ValueError where there are other turns than values."""
    numbers, count = runs(mask)
    if count != len(turns):
        raise ValueError(f"a turn column has {len(turns)} values, and the masks of its rows have {count} turns")
    return numbers


def _taken(turns: Tensor, numbers: Tensor) -> Tensor:
    return torch.cat([turns, turns.new_zeros(1)])[numbers]
