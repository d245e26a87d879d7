"""Optimizers and learning rates. Knows no loss and no model."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import nn

from flowrl.diag.diagnostic import FlowError, InternalError, diagnose
from flowrl.diag.span import Span
from flowrl.graph.params import OptimizerParams

SCHEDULES = ("constant", "linear", "cosine")


def make_optimizer(
    params: OptimizerParams, parameters: Iterable[nn.Parameter], span: Span | None
) -> torch.optim.Optimizer:
    """AdamW (Loshchilov & Hutter 2019; betas 0.9 and 0.999, epsilon 1e-8) or plain SGD. Weight decay acts on every
    parameter. Raises FlowError FR0801 for another name or schedule."""
    if params.schedule not in SCHEDULES:
        known = ", ".join(f"`{name}`" for name in SCHEDULES)
        raise FlowError(diagnose("FR0801", span, what=f"`schedule: {params.schedule}`", known=known))
    if params.name == "adamw":
        return torch.optim.AdamW(parameters, lr=params.lr, weight_decay=params.weight_decay, fused=True)
    if params.name == "sgd":
        return torch.optim.SGD(parameters, lr=params.lr, weight_decay=params.weight_decay)
    raise FlowError(diagnose("FR0801", span, what=f"`optimizer: {{name: {params.name}}}`", known="`adamw`, `sgd`"))


def learning_rate(params: OptimizerParams, step: int, steps: int | None) -> float:
    """The rate of the flow's step `step` (from 1): a function of the step alone, so that resuming needs no state.

    The first `warmup_steps` steps rise evenly to `lr`; then constant, or down to 0 at the end of the stage's `steps`,
    linearly or as half a cosine.
    """
    if step <= params.warmup_steps:
        return params.lr * step / params.warmup_steps
    if params.schedule == "constant":
        return params.lr
    if steps is None:
        raise InternalError(f"`schedule: {params.schedule}` without the number of steps")
    done = (step - 1 - params.warmup_steps) / max(1, steps - params.warmup_steps)
    share = 1 - done if params.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
    return params.lr * min(max(share, 0.0), 1.0)
