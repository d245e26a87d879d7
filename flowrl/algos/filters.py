"""Filters: which samples stay. Pure, on numpy; what a filter looks at comes in as one number for each sample.

A group is the samples of one prompt. A rule gives each sample, or with `unit: group` each group, a score, and whether
it may stay at all; `keep_top`, `min` and `max` then go by the score. Of equal scores the smaller prompt, and then the
earlier sample, comes first: what stays does not depend on who ran where.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from flowrl.graph.params import FilterParams
from flowrl.graph.rows import share_of

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]

RULES: frozenset[str] = frozenset({"zero_spread", "spread", "threshold", "truncated", "function"})


def kept(values: Floats, prompts: Ids, params: FilterParams) -> Bools:
    """Which samples stay, bool [rows].

    values: float64 [rows], one number for each sample; for `truncated` 1 where the response was cut off, else 0.
    prompts: int64 [rows], the prompt of each.

    Rules: `zero_spread` lets groups go whose values are all equal (DAPO, Yu et al. 2025, equation 11);
    `spread` scores a group by the standard deviation of its values, a population's (StarPO-S, Wang et al. 2025,
    arXiv:2504.20073, section 3.2); `threshold` scores a sample by its value, a group by the mean; `truncated` lets
    samples go that were cut off, and groups with one of them; `function` scores as `threshold` does, by what the
    function gave, and without a range or a share lets samples go that it gave 0, and groups with one of them.
    """
    if not len(values):
        return np.zeros(0, dtype=np.bool_)
    names, group_of = np.unique(prompts, return_inverse=True)
    if params.rule == "function" and params.min is params.max is params.keep_top is None:
        values = np.where(values == 0, 0.0, 1.0)
        params = replace(params, min=1.0)
    stay, score = _judged(values, group_of, len(names), params.rule)
    if params.unit == "sample":
        stay, score = _by_sample(values, stay[group_of], score[group_of], params.rule)
    stay = stay & _within_bounds(score, params)
    if params.keep_top is not None:
        groups = np.arange(len(names)) if params.unit == "group" else group_of
        stay = stay & _top(score, groups, params)
    return stay if params.unit == "sample" else stay[group_of]


def _judged(values: Floats, group_of: Ids, groups: int, rule: str) -> tuple[Bools, Floats]:
    """Of each group whether it may stay, and its score."""
    count = np.bincount(group_of, minlength=groups)
    mean = np.bincount(group_of, weights=values, minlength=groups) / count
    if rule == "zero_spread":
        low, high = np.full(groups, np.inf), np.full(groups, -np.inf)
        np.minimum.at(low, group_of, values)
        np.maximum.at(high, group_of, values)
        return low < high, high - low
    if rule == "spread":
        deviation = np.bincount(group_of, weights=(values - mean[group_of]) ** 2, minlength=groups) / count
        return np.ones(groups, dtype=np.bool_), np.sqrt(deviation)
    if rule == "truncated":
        return mean == 0, -mean
    return np.ones(groups, dtype=np.bool_), mean


def _by_sample(values: Floats, stay: Bools, score: Floats, rule: str) -> tuple[Bools, Floats]:
    """Samples have the spread of their group; any other score is their own."""
    if rule in ("zero_spread", "spread"):
        return stay, score
    if rule == "truncated":
        return values == 0, -values
    return stay, values


def _within_bounds(score: Floats, params: FilterParams) -> Bools:
    low = -np.inf if params.min is None else params.min
    high = np.inf if params.max is None else params.max
    return (score >= low) & (score <= high)


def _top(score: Floats, groups: Ids, params: FilterParams) -> Bools:
    """The highest share of all, or of each group's samples."""
    assert params.keep_top is not None
    best = np.zeros(len(score), dtype=np.bool_)
    each_group = params.unit == "sample" and params.within == "group"
    for members in [np.flatnonzero(groups == g) for g in np.unique(groups)] if each_group else [np.arange(len(score))]:
        order = members[np.argsort(-score[members], kind="stable")]
        best[order[: int(share_of(params.keep_top, len(members)))]] = True
    return best
