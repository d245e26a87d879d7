"""Memory of a trainer whose weights are frozen but for a LoRA adapter: only the adapter has gradients and states.

The base is kept in the dtype of compute, sharded as its backend shards it; the adapter's master weights, gradients and
moments are float32. Activations are those of the whole model: the backward pass goes through all of it.
"""

from __future__ import annotations

from flowrl.placement.cost.ledger import Given, line
from flowrl.placement.cost.placed import Placed, model_inputs
from flowrl.plan.plan import LedgerLine

Lines = list[LedgerLine]

_OF_ADAPTER = {"gradients": "4*A/(dp*tp*pp)", "layer gradients": "8*A/L"}
"""Lines of a moment that are the adapter's alone."""
_OF_NOBODY = ("root gradients", "reduce-scatter input")
"""Lines of a moment that frozen weights do not have."""


def adapter_state(placed: Placed, moments: Given) -> Lines:
    """What the trainer holds between ops."""
    inputs, role = {**model_inputs(placed), "o": moments}, placed.role.name
    cut = "dp" if placed.backend == "fsdp" else "(tp*pp)"
    lines = [
        line("weights", role, "bytes", f"w*P/{cut}", inputs),
        line("adapter master weights", role, "bytes", "4*A/(dp*tp*pp)", inputs),
        line("adapter optimizer states", role, "bytes", "o*A/(dp*tp*pp)", inputs),
    ]
    return [each for each in lines if each.value > 0]


def adapter_moment(placed: Placed, moment: Lines) -> Lines:
    """A moment of a full update, with the gradients of the adapter alone."""
    inputs, role = model_inputs(placed), placed.role.name
    kept = [each for each in moment if each.what not in _OF_NOBODY]
    return [
        line(each.what, role, "bytes", _OF_ADAPTER[each.what], inputs) if each.what in _OF_ADAPTER else each
        for each in kept
    ]
