"""How far a step's time may be off: the relative error that the profile states of itself, as ledger lines."""

from __future__ import annotations

from flowrl.machine.profile import Profile
from flowrl.placement.cost.ledger import Given, line
from flowrl.plan.plan import LedgerLine


def interval_lines(step_seconds: float, profile: Profile) -> tuple[LedgerLine, LedgerLine]:
    """The shortest and the longest that a step is likely to take. An error is a factor: a model that gives half
    or twice of what is measured has the error 1."""
    inputs = {
        "t": Given(step_seconds, "simulated"),
        "e": Given(profile.error, f"relative error that nine of ten published steps keep to ({profile.origin})"),
    }
    return (
        line("step, at least", None, "seconds", "t/(1 + e)", inputs),
        line("step, at most", None, "seconds", "t*(1 + e)", inputs),
    )
