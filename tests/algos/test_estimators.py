import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from flowrl.algos.estimators import ESTIMATORS, Samples, estimate
from flowrl.algos.ragged import runs
from flowrl.graph import signatures
from flowrl.graph.params import EstimateParams, KlParams
from tests.algos import reference
from tests.algos.batches import Padded, padded

GROUPED = ["grpo", "dr_grpo", "rloo"]


def samples_of(batch: Padded, **changes: Tensor) -> Samples:
    turns = torch.arange(runs(batch.mask)[1])
    columns: dict[str, Tensor] = {
        "turn_rewards": turns * 0.1,
        "state_keys": turns % 2,
        "values": batch.normal(),
        "baseline_rewards": batch.normal()[:, 0],
        "old_log_probs": batch.log_probs(),
        "ref_log_probs": batch.log_probs(),
    }
    given_columns = {"rewards": batch.rewards, "mask": batch.mask, "prompts": batch.prompts} | columns | changes
    # In float64, so that a formula and its second implementation agree to the last digits or are two formulas.
    doubled = {name: c.double() if c.is_floating_point() else c for name, c in given_columns.items()}
    return Samples(**doubled)


def of_rows(advantages: Tensor, batch: Padded) -> list[float]:
    """The one number of each row, which stands on each of its own tokens."""
    found = []
    for row, own in zip(advantages, batch.mask, strict=True):
        values = row[own].unique()
        assert len(values) == 1
        assert not row[~own].any()
        found.append(values.item())
    return found


@settings(max_examples=30, deadline=None)
@given(padded(), st.sampled_from(["none", "group", "batch"]))
def test_grpo_against_loops(batch: Padded, normalize: str) -> None:
    params = EstimateParams(estimator="grpo", normalize=normalize)
    got = of_rows(estimate(samples_of(batch), params)["advantages"], batch)
    rewards, prompts = batch.rewards.tolist(), batch.prompts.tolist()
    for row, reward in enumerate(rewards):
        mean, std = reference.group_stats(rewards, prompts, row)
        spread = {"none": 1.0, "group": std + 1e-6, "batch": reference.mean_std(rewards)[1] + 1e-6}[normalize]
        assert got[row] == pytest.approx((reward - mean) / spread, abs=1e-6, rel=1e-9)


@settings(max_examples=30, deadline=None)
@given(padded())
def test_other_baselines_against_loops(batch: Padded) -> None:
    rewards, prompts = batch.rewards.tolist(), batch.prompts.tolist()
    lengths = batch.mask.sum(-1).tolist()
    samples = samples_of(batch)
    assert samples.baseline_rewards is not None
    got = {
        name: of_rows(estimate(samples, EstimateParams(estimator=name, normalize="none"))["advantages"], batch)
        for name in ("rloo", "opo", "remax", "reinforce_pp_baseline")
    }
    for row, reward in enumerate(rewards):
        group = [i for i, p in enumerate(prompts) if p == prompts[row]]
        others = [rewards[i] for i in group if i != row]
        weighted = sum(lengths[i] * rewards[i] for i in group) / sum(lengths[i] for i in group)
        mean = sum(rewards[i] for i in group) / len(group)
        assert got["rloo"][row] == pytest.approx(reward - sum(others) / len(others), abs=1e-6)
        assert got["opo"][row] == pytest.approx(reward - weighted, abs=1e-6)
        assert got["remax"][row] == pytest.approx(reward - samples.baseline_rewards[row].item(), abs=1e-6)
        assert got["reinforce_pp_baseline"][row] == pytest.approx(reward - mean, abs=1e-6)


@settings(max_examples=30, deadline=None)
@given(padded(), st.sampled_from(GROUPED), st.sampled_from(["none", "group"]), st.permutations(range(12)))
def test_group_advantages_sum_to_zero_in_any_order(batch: Padded, name: str, normalize: str, order: list[int]) -> None:
    params = EstimateParams(estimator=name, normalize=normalize)
    samples = samples_of(batch)
    got = torch.tensor(of_rows(estimate(samples, params)["advantages"], batch))
    for prompt in batch.prompts.unique():
        assert got[batch.prompts == prompt].sum().item() == pytest.approx(0.0, abs=1e-6)
    shuffled = samples_of(batch, rewards=batch.rewards[order], mask=batch.mask[order], prompts=batch.prompts[order])
    again = estimate(shuffled, params)["advantages"]
    assert torch.allclose(again, estimate(samples, params)["advantages"][order], atol=1e-9)


@settings(max_examples=20, deadline=None)
@given(padded(), st.floats(0.1, 10.0), st.floats(-5.0, 5.0))
def test_rewards_on_another_scale_teach_the_same(batch: Padded, scale: float, shift: float) -> None:
    """With a baseline a shift is nothing; over a standard deviation a scale is nothing, else it is a factor."""
    moved = samples_of(batch, rewards=batch.rewards.double() * scale + shift)
    for name, normalize, factor in (("grpo", "group", 1.0), ("rloo", "none", scale), ("dr_grpo", "none", scale)):
        params = EstimateParams(estimator=name, normalize=normalize)
        plain, other = (estimate(each, params)["advantages"] for each in (samples_of(batch), moved))
        # 1e-6 stands beside the standard deviation that divides, which is a tenth or more here unless it is 0.
        assert torch.allclose(other, factor * plain, rtol=2e-4, atol=1e-6)


@settings(max_examples=30, deadline=None)
@given(padded(), st.sampled_from([1.0, 0.9]), st.sampled_from([1.0, 0.7, 0.0]), st.booleans())
def test_gae_against_its_definition(batch: Padded, gamma: float, lam: float, with_kl: bool) -> None:
    kl = KlParams(coef=0.1, form="k2") if with_kl else None
    params = EstimateParams(estimator="gae", normalize="none", gamma=gamma, lam=lam, kl=kl)
    samples = samples_of(batch)
    assert samples.values is not None
    assert samples.old_log_probs is not None
    assert samples.ref_log_probs is not None
    got = estimate(samples, params)
    for row, own in enumerate(batch.mask):
        values = samples.values[row][own].tolist()
        rewards = [0.0] * len(values)
        rewards[-1] = batch.rewards[row].item()
        if with_kl:
            pairs = zip(samples.old_log_probs[row][own].tolist(), samples.ref_log_probs[row][own].tolist(), strict=True)
            rewards = [r - 0.1 * reference.kl("k2", p, q) for r, (p, q) in zip(rewards, pairs, strict=True)]
        expected = reference.gae(rewards, values, gamma, lam)
        assert got["advantages"][row][own].tolist() == pytest.approx(expected, abs=1e-6)
        returns = [a + v for a, v in zip(expected, values, strict=True)]
        assert got["returns"][row][own].tolist() == pytest.approx(returns, abs=1e-6)


@settings(max_examples=30, deadline=None)
@given(padded(), st.floats(0.1, 2.0))
def test_reverse_kl_and_raft_against_loops(batch: Padded, coef: float) -> None:
    """Agarwal et al. 2024: the log-ratio of teacher and student at each sampled token; Dong et al. 2023: the best of
    each group and nothing else."""
    samples = samples_of(batch)
    assert samples.old_log_probs is not None
    assert samples.ref_log_probs is not None
    params = EstimateParams(estimator="reverse_kl", normalize="none", extra={"coef": coef})
    got = estimate(samples, params)["advantages"]
    for row, place in batch.mask.nonzero().tolist():
        expected = coef * (samples.ref_log_probs[row, place].item() - samples.old_log_probs[row, place].item())
        assert got[row, place].item() == pytest.approx(expected, abs=1e-6)
    assert not got[~batch.mask].any()
    chosen = of_rows(estimate(samples, EstimateParams(estimator="raft", normalize="none"))["advantages"], batch)
    rewards, prompts = batch.rewards.tolist(), batch.prompts.tolist()
    for prompt in set(prompts):
        group = [row for row, p in enumerate(prompts) if p == prompt]
        best = max(group, key=lambda row: (rewards[row], -row))
        assert [chosen[row] for row in group] == [float(row == best) for row in group]


@settings(max_examples=30, deadline=None)
@given(padded())
def test_reinforce_is_gae_without_values(batch: Padded) -> None:
    token_rewards = batch.normal()
    params = EstimateParams(estimator="reinforce", normalize="none", gamma=0.9)
    got = estimate(samples_of(batch, rewards=token_rewards), params)
    nothing = torch.zeros_like(token_rewards)
    same = EstimateParams(estimator="gae", normalize="none", gamma=0.9, lam=1.0)
    expected = estimate(samples_of(batch, rewards=token_rewards, values=nothing), same)
    assert torch.allclose(got["advantages"], expected["advantages"], atol=1e-9)
    assert torch.allclose(got["returns"], expected["returns"], atol=1e-9)


@settings(max_examples=30, deadline=None)
@given(padded(), st.sampled_from(["gae", "reinforce_pp", "reinforce_pp_baseline", "remax"]))
def test_batch_whitens_over_the_tokens(batch: Padded, name: str) -> None:
    advantages = estimate(samples_of(batch), EstimateParams(estimator=name, normalize="batch"))["advantages"]
    mean, std = reference.mean_std(advantages[batch.mask].tolist())
    assert (mean, std) == (pytest.approx(0.0, abs=1e-6), pytest.approx(1.0, abs=1e-6))


@settings(max_examples=20, deadline=None)
@given(padded(), st.sampled_from(sorted(ESTIMATORS)), st.sampled_from(["none", "group", "batch"]), st.integers(1, 3))
def test_masked_values_and_padding_never_leak(batch: Padded, name: str, normalize: str, extra: int) -> None:
    kl = KlParams(coef=0.1) if signatures.ESTIMATORS[name].kl else None
    params = EstimateParams(estimator=name, normalize=normalize, kl=kl)
    samples = samples_of(batch)
    expected = estimate(samples, params)
    spoilt = {
        column: torch.nn.functional.pad(getattr(samples, column).masked_fill(~batch.mask, torch.nan), (0, extra))
        for column in ("values", "old_log_probs", "ref_log_probs")
    }
    mask = torch.nn.functional.pad(batch.mask, (0, extra))
    got = estimate(samples_of(batch, mask=mask, baseline_rewards=samples.baseline_rewards, **spoilt), params)
    for column, values in expected.items():
        if values.dim() == 1:
            assert torch.equal(got[column], values), column
            continue
        assert torch.allclose(got[column][:, :-extra], values, atol=1e-9), column
        assert not got[column][:, -extra:].any()


def test_a_kl_lowers_the_reward_of_the_sample() -> None:
    mask = torch.ones(2, 2, dtype=torch.bool)
    old, ref = torch.tensor([[-1.0, -1.0], [-1.0, -1.0]]), torch.tensor([[-2.0, -1.0], [-1.0, -1.0]])
    samples = Samples(torch.tensor([1.0, 1.0]), mask, torch.tensor([0, 0]), old_log_probs=old, ref_log_probs=ref)
    params = EstimateParams(estimator="grpo", normalize="none", kl=KlParams(coef=0.5, form="k1"))
    # Rewards 1 - 0.5 x (1 + 0) and 1, less their mean 0.75.
    assert estimate(samples, params)["advantages"].tolist() == [[-0.25, -0.25], [0.25, 0.25]]


def test_a_group_of_one_has_no_advantage() -> None:
    samples = Samples(torch.tensor([3.0]), torch.ones(1, 2, dtype=torch.bool), torch.tensor([7]))
    for name in GROUPED:
        assert not estimate(samples, EstimateParams(estimator=name))["advantages"].any()


def test_outputs_cover_those_of_the_signatures() -> None:
    samples = Samples(*(torch.ones(2), torch.ones(2, 3, dtype=torch.bool), torch.tensor([0, 0])))
    column = torch.zeros(2, 3)
    turns = {"turn_rewards": torch.zeros(2), "state_keys": torch.zeros(2, dtype=torch.int64)}
    full = Samples(samples.rewards, samples.mask, samples.prompts, column, torch.zeros(2), column, column, **turns)
    for name in ESTIMATORS:
        made = estimate(full, EstimateParams(estimator=name))
        assert set(made) >= set(signatures.ESTIMATORS[name].writes)
