"""Steps of a flow model with noise: against torch's own normal, and against distributions that are known exactly."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from flowrl.algos.denoising import noise_of_steps, step_entropy, step_log_probs, step_mean


def test_noise_of_steps() -> None:
    """eta sqrt(s - s') behind every state but the first and the last."""
    made = noise_of_steps(torch.tensor([1.0, 0.75, 0.25, 0.0]), 0.4)
    assert made.tolist() == pytest.approx([0.0, 0.2, 0.4 * math.sqrt(0.5), 0.0])


def test_log_prob_is_the_mean_of_torchs_normal() -> None:
    torch.manual_seed(0)
    x, mean, noise = torch.randn(3, 4, 5, 6), torch.randn(3, 4, 5, 6), torch.tensor([0.1, 0.5, 2.0])
    normal = torch.distributions.Normal(mean, noise.view(3, 1, 1, 1))
    torch.testing.assert_close(step_log_probs(x, mean, noise), normal.log_prob(x).mean(dim=(1, 2, 3)))
    torch.testing.assert_close(step_entropy(noise), normal.entropy()[:, 0, 0, 0])


def test_mean_is_dance_grpos_own() -> None:
    """`flux_step` of the paper's code, with its `sde_solver`, written out again with eta in place of the noise."""
    torch.manual_seed(0)
    x, velocity, eta = torch.randn(2, 3, 4, 4), torch.randn(2, 3, 4, 4), 0.3
    sigma, after = 0.7, 0.55
    change = after - sigma
    data = x - sigma * velocity
    score = -(x - data * (1 - sigma)) / sigma**2
    expected = x + change * velocity + (-0.5 * eta**2 * score) * change
    levels = [torch.full((2,), level) for level in (sigma, after, eta * math.sqrt(-change))]
    torch.testing.assert_close(step_mean(x, velocity, *levels), expected)


def test_mean_is_flow_grpos_own() -> None:
    """`sde_step_with_logprob` of that paper's code, which gathers x and v, with its noise a sqrt(s / (1 - s))."""
    torch.manual_seed(0)
    x, velocity, sigma, after = torch.randn(2, 3, 4, 4), torch.randn(2, 3, 4, 4), 0.7, 0.55
    rate, change = 0.7 * math.sqrt(sigma / (1 - sigma)), after - sigma
    of_x, of_velocity = 1 + rate**2 / (2 * sigma) * change, 1 + rate**2 * (1 - sigma) / (2 * sigma)
    levels = [torch.full((2,), level) for level in (sigma, after, rate * math.sqrt(-change))]
    torch.testing.assert_close(step_mean(x, velocity, *levels), x * of_x + velocity * of_velocity * change)


def test_without_noise_a_step_is_eulers() -> None:
    x, velocity = torch.randn(2, 3), torch.randn(2, 3)
    levels = [torch.full((2,), level) for level in (0.5, 0.25, 0.0)]
    torch.testing.assert_close(step_mean(x, velocity, *levels), x - 0.25 * velocity)


@pytest.mark.parametrize("eta", [0.0, 0.5, 1.0])
def test_noise_moves_no_distribution(eta: float) -> None:
    """Data of a normal N(2, 0.5²), whose velocity is known: E[e - x_data | x]. Whatever the noise, samples are the
    data's own distribution."""
    centre, spread = 2.0, 0.5

    def velocity(x: Tensor, s: float) -> Tensor:
        variance = (1 - s) ** 2 * spread**2 + s**2
        away = (x - (1 - s) * centre) / variance
        return s * away - (centre + (1 - s) * spread**2 * away)

    torch.manual_seed(0)
    rows, steps = 20000, 200
    sigmas = torch.linspace(1.0, 0.0, steps + 1)
    noise = noise_of_steps(sigmas, eta)
    x = torch.randn(rows, 1)
    for place in range(1, steps + 1):
        levels = [each.expand(rows) for each in (sigmas[place - 1], sigmas[place], noise[place])]
        x = step_mean(x, velocity(x, float(sigmas[place - 1])), *levels) + noise[place] * torch.randn(rows, 1)
    assert float(x.mean()) == pytest.approx(centre, abs=0.02)
    assert float(x.std()) == pytest.approx(spread, abs=0.02)


def test_the_ratio_of_a_step_to_itself_is_one() -> None:
    x, mean, noise = torch.randn(2, 3), torch.randn(2, 3), torch.tensor([0.2, 0.4])
    assert (step_log_probs(x, mean, noise) - step_log_probs(x, mean, noise)).exp().tolist() == [1.0, 1.0]
