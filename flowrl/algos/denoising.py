"""Denoising as actions: a rectified flow sampled with noise, and the log-prob of each of its steps. Pure functions.

A flow model says a velocity v of a noisy x = (1 - s) x_data + s e, e of a standard normal, at noise level s from 1 to 0
(Liu et al. 2022, "Flow straight and fast"). A *step* takes x at s to x at s' < s. All tensors are float32 [rows, …]; s,
s' and the step's noise are [rows].
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def noise_of_steps(sigmas: Tensor, eta: float) -> Tensor:
    """Standard deviation of the noise behind each of the states at `sigmas` [states]: eta sqrt(s - s') of a step from s
    to s'. 0 at the first state, which no step has made, and at the last one: there the noise is gone (s' = 0), and the
    image is what the model takes the data to be (Xue et al. 2025, DanceGRPO, arXiv 2505.07818: its `flux_step`)."""
    noise = eta * (sigmas[:-1] - sigmas[1:]).clamp(min=0.0).sqrt()
    return torch.cat([noise.new_zeros(1), noise[:-1], noise.new_zeros(1)])


def step_mean(x: Tensor, velocity: Tensor, sigma: Tensor, next_sigma: Tensor, noise: Tensor) -> Tensor:
    """Where a step goes without its noise: x + (s' - s) v + noise² / 2 · score.

    The score of x is -(x - (1 - s) x_data) / s², with x_data = x - s v: with it the noise that is added moves no
    distribution on the way, so that samples are the flow's own (Xue et al. 2025, `flux_step`; Liu et al. 2025,
    Flow-GRPO, arXiv 2505.05470, with another noise).
    """
    s, after, std = (_wide(each, x) for each in (sigma, next_sigma, noise))
    data = x - s * velocity
    score = -(x - (1 - s) * data) / s.square()
    return x + (after - s) * velocity + std.square() / 2 * score


def step_log_probs(x: Tensor, mean: Tensor, noise: Tensor) -> Tensor:
    """Log-density of the state x that a step came to, float32 [rows]: of a normal around `mean`, as the *mean* over the
    numbers of a state and not their sum. Both papers' code has it so: a ratio is then of one number, and a `clip_ratio`
    does not depend on how large images are."""
    std = _wide(noise, x)
    density = -(x - mean).square() / (2 * std.square()) - std.log() - 0.5 * math.log(2 * math.pi)
    return density.flatten(1).mean(dim=1)


def step_entropy(noise: Tensor) -> Tensor:
    """Of the same normal, of one number: [rows]."""
    return 0.5 * math.log(2 * math.pi * math.e) + noise.log()


def _wide(per_row: Tensor, like: Tensor) -> Tensor:
    return per_row.view(-1, *[1] * (like.dim() - 1))
