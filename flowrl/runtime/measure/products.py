"""Matrix products: how fast they are where they are large, and how much slower where they are not.

A product of t tokens with a matrix of k x n takes 2·t·k·n·(1 + c·R/w)/X seconds, w = 1/(1/t + 1/k + 1/n) (the roofline
that placement/time/training.py plans with). Shapes of several w give X, where it saturates, and c by least squares.
"""

from __future__ import annotations

import torch

from flowrl.runtime.measure.figures import Figure, fit, timed
from flowrl.runtime.measure.machine import NAMES, Machine


def shapes(large: int, quick: bool) -> list[tuple[int, int, int]]:
    """Tokens, rows and columns, from wide to narrow."""
    half, small = large // 2, large // 8
    found = [
        (large, large, large),
        (half, half, half),
        (large, small, small),
        (small, large, large),
        (small, small, small),
    ]
    return found[:1] + found[2:4] if quick else found


def products(machine: Machine, quick: bool) -> list[Figure]:
    """The share of the peak in each dtype; that of the first dtype is a fallback for training and forward passes."""
    found: list[Figure] = []
    for dtype in machine.dtypes[: 1 if quick else None]:
        found += _of_dtype(machine, dtype, quick)
    return found


def _of_dtype(machine: Machine, dtype: torch.dtype, quick: bool) -> list[Figure]:
    seconds, rows, spreads, repeats = [], [], [], 0
    best = 0.0
    for t, k, n in shapes(machine.large, quick):
        left = torch.randn(t, k, device=machine.device, dtype=dtype)
        right = torch.randn(k, n, device=machine.device, dtype=dtype)
        times = timed(lambda a=left, b=right: a @ b, machine.wait, 0.1 if quick else 0.4)
        flops = 2.0 * t * k * n
        rows.append([flops, flops * (1.0 / t + 1.0 / k + 1.0 / n)])
        seconds.append(times.median)
        spreads.append(times.spread)
        repeats += len(times.seconds)
        best = max(best, flops / times.median)
    (slope, _), left_over = fit(rows, seconds)
    rate = max(best, 1.0 / slope) if slope > 0 else best
    share = rate / (machine.card.device.bf16_flops_per_second * machine.cores)
    spread = max(sorted(spreads)[len(spreads) // 2], left_over)
    text = f"{rate / 1e12:.3g} TFLOP/s in {NAMES[dtype]}, where products saturate"
    if dtype is not machine.dtypes[0]:
        return [Figure(path=None, value=share, text=text, spread=spread, repeats=repeats)]
    paths = (f"device.{machine.name}.train", f"device.{machine.name}.forward")
    return [Figure(path=path, value=share, text=text, spread=spread, repeats=repeats) for path in paths]
