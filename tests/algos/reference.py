"""A second implementation of every formula: plain loops over Python floats, written from the papers."""

from __future__ import annotations

import math
from collections.abc import Sequence

Rows = Sequence[Sequence[float]]
Mask = Sequence[Sequence[bool]]


def log_softmax(logits: Sequence[float], temperature: float) -> list[float]:
    scaled = [x / temperature for x in logits]
    top = max(scaled)
    total = top + math.log(sum(math.exp(x - top) for x in scaled))
    return [x - total for x in scaled]


def kl(form: str, p: float, q: float) -> float:
    d = p - q
    return {"k1": d, "k2": d * d / 2, "k3": math.exp(-d) - 1 + d}[form]


def clip(x: float, low: float, high: float) -> float:
    return min(max(x, low), high)


def aggregate(losses: Rows, mask: Mask, how: str, fixed: int) -> float:
    rows = [[x for x, m in zip(row, own, strict=True) if m] for row, own in zip(losses, mask, strict=True)]
    rows = [row for row in rows if row]
    if how == "token_mean":
        return sum(map(sum, rows)) / sum(map(len, rows))
    if how == "sequence_mean":
        return sum(sum(row) / len(row) for row in rows) / len(rows)
    return sum(map(sum, rows)) / (len(rows) * fixed)


def ppo(new: float, old: float, advantage: float, low: float, high: float, dual: float | None) -> float:
    ratio = math.exp(new - old)
    gain = min(ratio * advantage, clip(ratio, 1 - low, 1 + high) * advantage)
    if dual is not None and advantage < 0:
        gain = max(gain, dual * advantage)
    return -gain


def group_stats(rewards: Sequence[float], prompts: Sequence[int], row: int) -> tuple[float, float]:
    group = [r for r, p in zip(rewards, prompts, strict=True) if p == prompts[row]]
    return mean_std(group)


def mean_std(values: Sequence[float]) -> tuple[float, float]:
    mean = sum(values) / len(values)
    if len(values) == 1:
        return mean, 0.0
    return mean, math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))


def gae(rewards: Sequence[float], values: Sequence[float], gamma: float, lam: float) -> list[float]:
    """By the definition: A_t = sum_k (gamma lam)^k delta_{t+k}, over the row's own tokens only."""
    n = len(rewards)
    values = [*values, 0.0]
    deltas = [rewards[t] + gamma * values[t + 1] - values[t] for t in range(n)]
    return [sum((gamma * lam) ** k * deltas[t + k] for k in range(n - t)) for t in range(n)]


def turns(mask: Sequence[bool]) -> list[list[int]]:
    """Places of each maximal run of true."""
    found: list[list[int]] = []
    for place, own in enumerate(mask):
        if own and (place == 0 or not mask[place - 1]):
            found.append([])
        if own:
            found[-1].append(place)
    return found
