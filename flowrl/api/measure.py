"""Measures this machine and makes a profile of it. What runs is imported when it is asked for."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from flowrl.diag.diagnostic import FlowError, diagnose
from flowrl.machine import profile as profiles
from flowrl.machine.profile import PROFILE, Profile, with_constants

if TYPE_CHECKING:
    from flowrl.runtime.measure.session import Measured, Moment

DIGITS = 4
"""Significant ones of a figure in a profile."""
OF_A_STEP = ("train", "forward", "traffic", "layer_seconds", "eager_layer_seconds", "decode_step_seconds")
"""Figures that a step of a small flow is made of: how far they scatter is how far its estimate may be off."""


def measure_machine(quick: bool, tell: Callable[[Moment], None]) -> Measured:
    """The figures of this machine, or as many as there were before Ctrl-C. Raises FlowError FR0722 for a GPU that the
    catalogue does not know, since shares are of its peaks."""
    from flowrl.runtime.measure.machine import this_machine
    from flowrl.runtime.measure.session import measure

    try:
        machine = this_machine()
    except KeyError as unknown:
        raise FlowError(diagnose("FR0722", device=unknown.args[0])) from None
    return measure(machine, quick, tell)


def profile_of(measured: Measured, base: Profile = PROFILE) -> Profile:
    """`base` with the measured figures in the place of its own; those that are missing stay."""
    figures = measured.by_path()
    values = {path: rounded(figure.value) for path, figure in figures.items()}
    origin = f"measured on {measured.where}"
    made = with_constants(base, values, origin)
    names = {path.split(".")[1] for path in values if path.startswith("device.")}
    device = {name: rates | {"source": origin} if name in names else rates for name, rates in made.device.items()}
    notes = {
        path: profiles.Measured(how=figure.text, spread=rounded(figure.spread), repeats=figure.repeats)
        for path, figure in figures.items()
    }
    spreads = [figure.spread for path, figure in figures.items() if path.rpartition(".")[2] in OF_A_STEP]
    error = math.sqrt(sum(each * each for each in spreads) / len(spreads)) if spreads else base.error
    return replace(made, device=device, measured={**base.measured, **notes}, error=rounded(max(error, 0.05)))


def rounded(value: float) -> float:
    """To four significant digits."""
    return float(f"{value:.{DIGITS}g}")
