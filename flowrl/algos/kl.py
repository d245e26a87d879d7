"""Estimators of KL(p || q) from tokens sampled from p (Schulman 2020, "Approximating KL divergence").

With d = log p - log q at the sampled token: k1 = d (unbiased, high variance), k2 = d²/2 (biased, low variance),
k3 = exp(-d) - 1 + d (unbiased, low variance, never negative). All differentiable in both arguments.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor


def k1(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """log p - log q, elementwise; any one shape, float32."""
    return log_probs - ref_log_probs


def k2(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """(log p - log q)² / 2, elementwise."""
    return (log_probs - ref_log_probs).square() / 2


def k3(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """q/p - 1 - log(q/p), elementwise."""
    d = ref_log_probs - log_probs
    return d.expm1() - d


KL: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3}
