"""The order of a step's phases, and which phase each op and instruction belongs to.

The order is a preference among instructions that are free to run in any order; data edges always come first. Knows
graphs and instructions, not pools or times.
"""

from __future__ import annotations

from enum import StrEnum

from flowrl.graph.graph import Kind


class Phase(StrEnum):
    DATA = "data"
    ROLLOUT = "rollout"
    """Weights received, then generation; validation's generation too, while the generator is on the devices."""
    SCORE = "score"
    FORWARD = "forward"
    """log_probs and values: reference and critic first, the policy's trainer last, because it updates next."""
    ESTIMATE = "estimate"
    TRAIN = "train"
    """For each trainer in turn: its updates, its weights published, its checkpoint."""
    EVALUATE = "evaluate"
    """Validation's work on the host, after everything that training waits for."""


PHASES: tuple[Phase, ...] = (
    Phase.DATA,
    Phase.ROLLOUT,
    Phase.SCORE,
    Phase.FORWARD,
    Phase.ESTIMATE,
    Phase.TRAIN,
    Phase.EVALUATE,
)

_BY_METHOD: dict[str, Phase] = {
    "generate": Phase.ROLLOUT,
    "reset": Phase.ROLLOUT,
    "step": Phase.ROLLOUT,
    "score": Phase.SCORE,
    "compare": Phase.SCORE,
    "ask": Phase.SCORE,
    "ask_pairs": Phase.SCORE,
    "log_probs": Phase.FORWARD,
    "values": Phase.FORWARD,
    "update": Phase.TRAIN,
}


def phase_of(kind: Kind, method: str) -> Phase:
    """Phase of an op. Estimators, filters and functions run when their inputs are there, before training."""
    if kind is Kind.DATA:
        return Phase.DATA
    return _BY_METHOD.get(method, Phase.ESTIMATE)
