"""Memory of the hosts for what is taken off their devices. One entry, for the node that holds most."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from flowrl.machine.cluster import Cluster
from flowrl.placement import engine_memory, training_memory
from flowrl.placement.ledger import Given, bytes_of, line
from flowrl.placement.placed import HOST, Placed, group_of
from flowrl.placement.training_memory import Lines
from flowrl.plan.plan import LedgerLine, Memory, Pool


def off_device_lines(placed: Placed) -> Lines:
    """What of a role is copied to the host when it leaves a device: its state, and of an engine the weights alone (the
    KV cache is thrown away; vLLM, sleep mode level 1)."""
    if placed.shape is None:
        return []
    return (
        engine_memory.weights_line(placed) if engine_memory.is_vllm(placed) else training_memory.resident_lines(placed)
    )


def host_memory(everyone: Sequence[tuple[Pool, tuple[Placed, ...]]], cluster: Cluster) -> tuple[Memory, ...]:
    """The node with most offloaded bytes against its memory; nothing where nothing is offloaded."""
    by_node: dict[str, list[LedgerLine]] = defaultdict(list)
    limits: dict[str, int] = {}
    for pool, placed in everyone:
        away = [each for each in placed if each.offloaded and not each.device.is_cpu]
        for node in sorted({device.rsplit("/", 1)[0] for device in pool.devices}):
            here = sum(device.rsplit("/", 1)[0] == node for device in pool.devices)
            limits[node] = group_of(pool, cluster).host_memory_bytes
            by_node[node].extend(_on_node(each, here, pool) for each in away if each.shape is not None)
    if not any(by_node.values()):
        return ()
    node = max(by_node, key=lambda name: (bytes_of(by_node[name]), name))
    lines = tuple(by_node[node])
    return (
        Memory(
            pool=HOST,
            device=node,
            phase="offloaded state",
            peak_bytes=bytes_of(lines),
            limit_bytes=limits[node],
            lines=lines,
        ),
    )


def _on_node(placed: Placed, devices: int, pool: Pool) -> LedgerLine:
    state = bytes_of(off_device_lines(placed))
    inputs = {
        "s": Given(state, " + ".join(f"{each.what} ({each.formula})" for each in off_device_lines(placed))),
        "d": Given(devices, f"devices of pool {pool.name} on this node"),
    }
    return line("offloaded state", placed.role.name, "bytes", "s*d", inputs)
