"""Advantages of turns against loops over Python floats, written from the papers, and their properties."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from flowrl.algos import turns
from flowrl.algos.estimators import Samples, estimate
from flowrl.graph.params import EstimateParams, KlParams
from tests.algos import reference
from tests.algos.batches import Padded, padded

ALIKE = {"max_examples": 30, "deadline": None}


def spans_of(mask: Tensor) -> list[list[list[int]]]:
    """The places of each turn of each row, one token at a time."""
    found = []
    for row in mask.tolist():
        spans: list[list[int]] = []
        for place, own in enumerate(row):
            if own and (place == 0 or not row[place - 1]):
                spans.append([])
            if own:
                spans[-1].append(place)
        found.append(spans)
    return found


def columns(batch: Padded, states: int = 3) -> tuple[Tensor, Tensor]:
    count = sum(map(len, spans_of(batch.mask)))
    rewards = torch.randn(count, generator=batch.generator, dtype=torch.float64)
    return rewards, torch.randint(states, (count,), generator=batch.generator) - 1


def samples_of(batch: Padded, rewards: Tensor, keys: Tensor, **more: Tensor) -> Samples:
    total = [0.0] * len(batch.mask)
    for row, reward in zip(turns.rows_of_turns(batch.mask).tolist(), rewards.tolist(), strict=True):
        total[row] += reward
    found = torch.tensor(total, dtype=torch.float64)
    return Samples(found, batch.mask, batch.prompts, turn_rewards=rewards, state_keys=keys, **more)


def plain_gigpo(batch: Padded, rewards: list[float], keys: list[int], gamma: float, weight: float, norm: str) -> Any:
    """Equations 3 and 6 to 8 of arXiv:2505.10978, with dictionaries."""
    spans = spans_of(batch.mask)
    prompts = batch.prompts.tolist()
    flat = [(row, k) for row, each in enumerate(spans) for k in range(len(each))]
    own = [[reward for (r, _), reward in zip(flat, rewards, strict=True) if r == row] for row in range(len(spans))]
    totals = [sum(each) for each in own]
    to_go = [sum(gamma ** (j - k) * own[row][j] for j in range(k, len(own[row]))) for row, k in flat]
    anchors: dict[tuple[int, int], list[float]] = {}
    for (row, _), key, value in zip(flat, keys, to_go, strict=True):
        anchors.setdefault((prompts[row], key), []).append(value)

    def relative(value: float, group: list[float], everything: list[float]) -> float:
        mean, std = reference.mean_std(group)
        scale = {"none": 1.0, "group": std + 1e-6, "batch": reference.mean_std(everything)[1] + 1e-6}[norm]
        return (value - mean) / scale

    found = [[0.0] * batch.mask.shape[1] for _ in spans]
    for (row, k), key, value in zip(flat, keys, to_go, strict=True):
        group = [total for total, prompt in zip(totals, prompts, strict=True) if prompt == prompts[row]]
        advantage = relative(totals[row], group, totals)
        advantage += weight * relative(value, anchors[prompts[row], key], to_go)
        for place in spans[row][k]:
            found[row][place] = advantage
    return torch.tensor(found, dtype=torch.float64)


@settings(**ALIKE)
@given(padded(), st.sampled_from(["none", "group", "batch"]), st.floats(0, 1), st.floats(0, 3))
def test_gigpo_against_loops(batch: Padded, normalize: str, gamma: float, weight: float) -> None:
    rewards, keys = columns(batch)
    params = EstimateParams(estimator="gigpo", normalize=normalize, gamma=gamma, extra={"step_weight": weight})
    got = estimate(samples_of(batch, rewards, keys), params)["advantages"]
    want = plain_gigpo(batch, rewards.tolist(), keys.tolist(), gamma, weight, normalize)
    torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)


@settings(**ALIKE)
@given(padded())
def test_gigpo_of_states_that_never_meet_is_grpo(batch: Padded) -> None:
    rewards, keys = columns(batch)
    samples = samples_of(batch, rewards, torch.arange(len(keys)))
    alone = estimate(samples, EstimateParams(estimator="gigpo", normalize="group"))["advantages"]
    episodes = estimate(samples, EstimateParams(estimator="grpo", normalize="group"))["advantages"]
    torch.testing.assert_close(alone, episodes, rtol=1e-9, atol=1e-9)


@settings(**ALIKE)
@given(padded())
def test_turns_of_one_state_balance(batch: Padded) -> None:
    """The step-level advantages of an anchor group add up to nothing; a state of another prompt is another one."""
    rewards, keys = columns(batch)
    got = estimate(
        samples_of(batch, rewards, keys),
        EstimateParams(estimator="gigpo", normalize="none", extra={"step_weight": 1.0}),
    )["advantages"]
    level = estimate(samples_of(batch, rewards, keys), EstimateParams(estimator="grpo", normalize="none"))["advantages"]
    step = got - level
    sums: dict[tuple[int, int], float] = {}
    flat = [(row, span[0]) for row, spans in enumerate(spans_of(batch.mask)) for span in spans]
    for (row, place), key in zip(flat, keys.tolist(), strict=True):
        name = (int(batch.prompts[row]), key)
        sums[name] = sums.get(name, 0.0) + step[row, place].item()
    assert all(abs(total) < 1e-9 for total in sums.values())


@settings(**ALIKE)
@given(padded(), st.floats(0.1, 1), st.floats(0, 1), st.floats(0.1, 1))
def test_bi_level_gae_against_loops(batch: Padded, gamma: float, lam: float, turn_gamma: float) -> None:
    rewards, _ = columns(batch)
    values = batch.normal().double()
    params = EstimateParams(
        estimator="bi_level_gae", normalize="none", gamma=gamma, lam=lam, extra={"turn_gamma": turn_gamma}
    )
    samples = samples_of(batch, rewards, torch.zeros(len(rewards), dtype=torch.int64), values=values)
    got = estimate(samples, params)
    want = torch.zeros_like(values)
    left = rewards.tolist()
    for row, spans in enumerate(spans_of(batch.mask)):
        own, left = left[: len(spans)], left[len(spans) :]
        ends = [values[row, span[-1]].item() for span in spans]
        high = reference.gae(own, ends, turn_gamma, lam)
        for advantage, span, end in zip(high, spans, ends, strict=True):
            # The turn's return on its last token is what its tokens are rewarded with.
            inner = [0.0] * (len(span) - 1) + [advantage + end]
            low = reference.gae(inner, [values[row, place].item() for place in span], gamma, lam)
            for place, value in zip(span, low, strict=True):
                want[row, place] = value
    torch.testing.assert_close(got["advantages"], want, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(got["returns"], torch.where(batch.mask, want + values, 0.0), rtol=1e-6, atol=1e-6)


@settings(**ALIKE)
@given(padded(), st.floats(0.1, 1), st.floats(0, 1))
def test_one_turn_on_one_level_is_gae(batch: Padded, gamma: float, lam: float) -> None:
    """Rows of a single turn: the upper level has one step, and the lower one is plain GAE."""
    mask = torch.zeros_like(batch.mask)
    for row, own in enumerate(batch.mask.sum(-1).tolist()):
        mask[row, 1 : 1 + own] = True
    mask[~mask.any(-1), 0] = True
    values, rewards = batch.normal().double(), batch.normal().double()[:, 0]
    given_rows = {"mask": mask, "prompts": batch.prompts, "values": values}
    two = estimate(
        Samples(rewards, turn_rewards=rewards, **given_rows),
        EstimateParams(estimator="bi_level_gae", normalize="none", gamma=gamma, lam=lam, extra={"turn_gamma": 0.3}),
    )
    one = estimate(
        Samples(rewards, **given_rows), EstimateParams(estimator="gae", normalize="none", gamma=gamma, lam=lam)
    )
    torch.testing.assert_close(two["advantages"], one["advantages"].double(), rtol=1e-5, atol=1e-5)


@settings(**ALIKE)
@given(padded(), st.floats(0, 5))
def test_what_stands_outside_turns_and_behind_rows_does_not_matter(batch: Padded, scale: float) -> None:
    """Padding and observations are never read, and rewards scale through `normalize: group`."""
    rewards, keys = columns(batch)
    values = batch.normal().double()
    odd = torch.where(batch.mask, values, math.nan)
    wide = torch.nn.functional.pad(batch.mask, (0, 3))
    for estimator in ("gigpo", "bi_level_gae"):
        params = EstimateParams(estimator=estimator, normalize="none", gamma=0.9)
        plain = estimate(samples_of(batch, rewards, keys, values=values), params)["advantages"]
        told = estimate(samples_of(batch, rewards, keys, values=odd), params)["advantages"]
        assert torch.equal(plain, told)
        assert not plain[~batch.mask].any()
        more = Padded(wide, batch.prompts, batch.rewards, batch.generator)
        padded_values = torch.nn.functional.pad(values, (0, 3))
        longer = estimate(samples_of(more, rewards, keys, values=padded_values), params)["advantages"]
        torch.testing.assert_close(longer[:, :-3], plain)
        twice = estimate(samples_of(batch, rewards * (1 + scale), keys, values=values * (1 + scale)), params)
        torch.testing.assert_close(twice["advantages"], plain * (1 + scale))


@settings(**ALIKE)
@given(padded(), st.sampled_from(["k1", "k2", "k3"]))
def test_a_kl_in_the_reward_is_of_its_turn(batch: Padded, form: str) -> None:
    rewards, keys = columns(batch)
    old, other = batch.log_probs().double(), batch.log_probs().double()
    params = EstimateParams(estimator="gigpo", normalize="none", gamma=0.9, kl=KlParams(coef=0.3, form=form))
    got = estimate(samples_of(batch, rewards, keys, old_log_probs=old, ref_log_probs=other), params)["advantages"]
    spans = [(row, span) for row, each in enumerate(spans_of(batch.mask)) for span in each]
    less = [
        reward - 0.3 * sum(reference.kl(form, old[row, t].item(), other[row, t].item()) for t in span)
        for reward, (row, span) in zip(rewards.tolist(), spans, strict=True)
    ]
    want = plain_gigpo(batch, less, keys.tolist(), 0.9, 1.0, "none")
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@settings(**ALIKE)
@given(padded())
def test_turn_columns_and_token_columns(batch: Padded) -> None:
    rewards, _ = columns(batch)
    spans = [(row, span) for row, each in enumerate(spans_of(batch.mask)) for span in each]
    last, everywhere = turns.on_last_tokens(rewards, batch.mask), turns.on_all_tokens(rewards, batch.mask)
    for reward, (row, span) in zip(rewards.tolist(), spans, strict=True):
        assert [last[row, t].item() for t in span] == [0.0] * (len(span) - 1) + [reward]
        assert {everywhere[row, t].item() for t in span} == {reward}
    assert not last[~batch.mask].any()
    torch.testing.assert_close(turns.turn_sums(last, batch.mask), rewards)
    assert turns.rows_of_turns(batch.mask).tolist() == [row for row, _ in spans]


def test_other_turns_than_values_are_refused() -> None:
    with pytest.raises(ValueError, match="2 values, and the masks of its rows have 1 turns"):
        turns.on_all_tokens(torch.zeros(2), torch.tensor([[False, True, True]]))
