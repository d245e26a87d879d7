"""A hand-over of weights through shared memory, as a run makes it: what it takes beside its bytes."""

from __future__ import annotations

import numpy as np

from flowrl.runtime.measure.figures import Figure, timed
from flowrl.runtime.measure.machine import Machine
from flowrl.runtime.weights import SharedBuffer

BYTES = 2**16
"""So few that their copy does not count."""


def handover(machine: Machine, quick: bool) -> list[Figure]:
    """Half of a version written and read: the planner counts it at both ends of an edge."""
    data = np.zeros(BYTES, dtype=np.uint8)
    buffer = SharedBuffer.create(BYTES)
    version = 0

    def once() -> None:
        nonlocal version
        version += 1
        with buffer.writing(version) as slot:
            slot[:] = data
        with buffer.reading(version) as slot:
            data[:] = slot

    try:
        times = timed(once, machine.wait, 0.1 if quick else 0.4, most=400)
    finally:
        buffer.close()
    text = f"{times.median / 2 * 1e3:.3g} ms to lock, note and check a version of weights at one end"
    path = "fixed.sync_seconds"
    return [Figure(path=path, value=times.median / 2, text=text, spread=times.spread, repeats=len(times.seconds))]
