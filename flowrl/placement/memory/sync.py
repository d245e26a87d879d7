"""A weights edge as the steps that it is made of, each with what both ends hold on a device then.

Takes the ends of an edge that are in one pool; gives names and ledger lines. Bytes per link and times are elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from flowrl.graph.graph import Edge
from flowrl.machine.sync import TRANSPORTS
from flowrl.placement.cost.placed import Placed
from flowrl.placement.memory import engine as engine_memory
from flowrl.placement.memory import training as training_memory
from flowrl.placement.memory.training import Lines

DIRECT = tuple(name for name, transport in TRANSPORTS.items() if transport.direct)
"""Transports that read the sender's memory while the receiver writes: neither can leave the device."""

Held = Callable[[Placed], Lines]


def sync_phases(
    edge: Edge, source: Placed | None, target: Placed | None, held: Held
) -> Iterator[tuple[str, Placed, Lines]]:
    """Name, role at work and lines of each step, in order. An end that is not in the pool is None; `held` gives what a
    role holds between its ops. Steps: `send_weights A => B`, `wake_weights`, `receive_weights`, `wake_cache`.

    An engine that may sleep wakes its weights, takes the new ones and only then makes its cache (tagged wake-up,
    vllm-project/vllm#15254); one that cannot has its cache from the start. By a direct transport both ends are on the
    device until the weights are in (verl-project/verl#302).
    """
    name = f"{edge.source.split('.')[0]} => {edge.target.split('.')[0]}"
    if source is not None:
        beside = [] if target is None else off_duty(target, held)
        yield f"send_weights {name}", source, [*training_memory.export_lines(source, held(source)), *beside]
    if target is None:
        return
    together = source is not None and (edge.transport in DIRECT or not source.offloaded)
    beside = held(source) if source is not None and together else []
    whole = held(target)
    if not _is_staged(target):
        yield f"receive_weights {name}", target, [*engine_memory.receive_lines(target, whole), *beside]
        return
    awake = engine_memory.awake_lines(target)
    yield f"wake_weights {name}", target, [*awake, *beside]
    yield f"receive_weights {name}", target, [*engine_memory.receive_lines(target, awake), *beside]
    left = [] if source is None or source.offloaded else beside
    yield f"wake_cache {name}", target, [*whole, *left]


def off_duty(role: Placed, held: Held) -> Lines:
    """What a role leaves on the device while another works there."""
    return engine_memory.asleep_lines(role) if role.offloaded else held(role)


def _is_staged(target: Placed) -> bool:
    if not target.offloaded or target.device.is_cpu or not engine_memory.is_engine(target):
        return False
    return target.profile.engine_memory(target.backend).staged
