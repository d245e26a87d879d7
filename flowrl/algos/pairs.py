"""Losses on pairs of responses to one prompt, one preferred to the other, and the choice of such pairs. Pure functions.

A row has a sign: 1 where its response is the preferred one of its pair, -1 where it is the other, 0 where it has no
part in a pair (a tie, or neither the best nor the worst of its group). The two rows of a pair share a group. What is
lost on a pair stands at its preferred row: losses are float32 [rows], not [rows, tokens], and the denominator of the
whole is the number of pairs.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from flowrl.algos.ragged import dense, masked_sum
from flowrl.algos.terms import Columns, Terms
from flowrl.graph.params import UpdateParams

SIGN, GROUP = "pair_sign", "pair_group"
"""Columns of a loss on pairs: float32 [rows] each; equal numbers of GROUP are rows of one prompt."""


def partners(columns: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Row numbers of the preferred and of the other response of each pair, int64 [pairs] both, by group ascending. A
    row whose partner is not there (dropped, or a tie) is in no pair."""
    sign, group = columns[SIGN], columns[GROUP]
    preferred, other = ((sign * side > 0).nonzero()[:, 0] for side in (1, -1))
    preferred = preferred[torch.isin(group[preferred], group[other])]
    other = other[torch.isin(group[other], group[preferred])]
    return preferred[group[preferred].argsort(stable=True)], other[group[other].argsort(stable=True)]


def counted(columns: Mapping[str, Tensor]) -> Tensor:
    """bool [rows]: the preferred row of each pair, where the pair's loss stands."""
    preferred, _ = partners(columns)
    return torch.zeros_like(columns[SIGN], dtype=torch.bool).index_fill(0, preferred, True)


def dpo(log_probs: Tensor, mask: Tensor, columns: Columns, params: UpdateParams) -> Terms:
    """-log sigmoid(m) with m = beta (log pi(w)/ref(w) - log pi(l)/ref(l)) of the preferred response w over the other,
    l; log-probs are summed over the response (Rafailov et al. 2023, "Direct preference optimization", equation 7).

    log_probs and ref_log_probs float32 [rows, tokens], pair_sign and pair_group float32 [rows]; gives float32 [rows].
    Metrics: `margin`, m; `accuracy`, whether it is above 0; `chosen` and `rejected`, beta log pi/ref of each.
    """
    assert params.beta is not None
    reference = torch.where(mask, columns["ref_log_probs"], torch.zeros_like(log_probs))
    moved = params.beta * masked_sum(log_probs - reference, mask)
    return _preference(moved, columns)


def bradley_terry(scores: Tensor, mask: Tensor, columns: Columns, params: UpdateParams) -> Terms:
    """-log sigmoid(r(w) - r(l)) of the scores of the preferred response w and the other, l (Bradley and Terry 1952;
    Ouyang et al. 2022, equation 1). scores float32 [rows], of whole responses; gives float32 [rows].

    Metrics: `margin`, `accuracy`, `chosen` and `rejected`, as of dpo.
    """
    return _preference(scores, columns)


def best_and_worst(rewards: Tensor, prompts: Tensor) -> tuple[Tensor, Tensor]:
    """Of each group the sample with the highest and the one with the lowest reward: the pair that online DPO trains on
    (Guo et al. 2024, "Direct language model alignment from online AI feedback", section 3).

    rewards float32 [rows], prompts int64 [rows]. Gives signs, float32 [rows] (1, -1, or 0), and bool [rows]: the two
    rows of each group that make its pair. Of equal rewards the first row counts; a group whose rewards are all equal
    has a pair without a preference, signs 0; a single sample makes no pair.
    """
    signs, picked = torch.zeros_like(rewards), torch.zeros_like(rewards, dtype=torch.bool)
    groups, count = dense(prompts)
    for group in range(count):
        rows = (groups == group).nonzero()[:, 0]
        if len(rows) < 2:
            continue
        order = rows[rewards[rows].argsort(descending=True, stable=True)]
        best = order[0]
        least = rewards[order[-1]]
        worst = next(row for row in order[1:] if rewards[row] == least)
        picked[best] = picked[worst] = True
        if rewards[best] > least:
            signs[best], signs[worst] = 1.0, -1.0
    return signs, picked


def _preference(scores: Tensor, columns: Columns) -> Terms:
    preferred, other = partners(columns)
    margin = scores[preferred] - scores[other]
    numbers = {"margin": margin, "accuracy": (margin > 0).to(scores.dtype)}
    numbers |= {"chosen": scores[preferred], "rejected": scores[other]}
    empty = torch.zeros_like(scores)
    metrics = {name: empty.index_copy(0, preferred, values.detach()) for name, values in numbers.items()}
    return Terms(empty.index_copy(0, preferred, -logsigmoid(margin)), metrics)
