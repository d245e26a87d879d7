"""A hand-over of weights through shared memory, as a run makes it: what it takes beside its bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from flowrl.backends.models import load_lm, torch_dtype
from flowrl.backends.trainers.fsdp import adapters
from flowrl.backends.weights import read_into
from flowrl.runtime.measure.figures import Figure, Times, timed
from flowrl.runtime.measure.machine import Machine
from flowrl.runtime.measure.models import Small, make
from flowrl.runtime.measure.ranks import generator
from flowrl.runtime.weights import SharedBuffer, buffer_bytes

MODEL = Small(64, 3)
"""So small that the copy of its bytes does not count; its parameters, some forty, are each found and copied alone."""


def handover(machine: Machine, quick: bool) -> list[Figure]:
    """Half of a version written by a trainer's model and read into a generator's: the planner counts it at both ends
    of an edge."""
    source, target = (make(MODEL, machine, machine.dtypes[0]).to("cpu") for _ in range(2))
    manifest = adapters.manifest(source, machine.dtypes[0], alone=False)
    parameters = dict(target.named_parameters())
    buffer = SharedBuffer.create(buffer_bytes(manifest))
    version = 0

    def once() -> None:
        nonlocal version
        version += 1
        with buffer.writing(version) as slot:
            adapters.write(source, manifest, slot, machine.dtypes[0], alone=False)
        with buffer.reading(version) as slot:
            read_into(parameters, manifest, slot)

    try:
        times = timed(once, machine.wait, 0.1 if quick else 0.4, most=400)
    finally:
        buffer.close()
    text = f"{times.median / 2 * 1e3:.3g} ms for a version of a small model's weights at one end"
    path = "fixed.sync_seconds"
    return [Figure(path=path, value=times.median / 2, text=text, spread=times.spread, repeats=len(times.seconds))]


def taken_up(folder: Path, backend: str, dtype: str) -> Times:
    """Until an engine on a CPU has taken new weights of a small model, made in `folder`, out of a buffer."""
    rank = generator(MODEL, folder, backend, "cpu", 1, dtype)
    source = load_lm(folder / f"{MODEL.hidden}x{MODEL.layers}", dtype=torch_dtype(dtype))
    manifest = adapters.manifest(source, torch_dtype(dtype), alone=False)
    buffer = np.zeros(manifest[-1].offset + manifest[-1].nbytes, dtype=np.uint8)
    adapters.write(source, manifest, buffer, torch_dtype(dtype), alone=False)
    version = 0

    def once() -> None:
        nonlocal version
        version += 1
        rank.read_weights(manifest, buffer, version)

    try:
        return timed(once, lambda: None, 0.5, most=20)
    finally:
        rank.close()
