"""Memory of the hosts for what is taken off their devices. One entry, for the node that holds most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from flowrl.machine.cluster import Cluster
from flowrl.placement.cost.denoiser import sampler_lines
from flowrl.placement.cost.ledger import Given, bytes_of, line
from flowrl.placement.cost.placed import HOST, Placed, group_of
from flowrl.placement.memory import engine as engine_memory
from flowrl.placement.memory import training as training_memory
from flowrl.placement.memory.training import Lines
from flowrl.plan.plan import LedgerLine, Memory, Pool


def off_device_lines(placed: Placed) -> Lines:
    """What of a role is copied to the host when it leaves a device: its state, and of an engine the weights alone (the
    KV cache is thrown away; vLLM, sleep mode level 1). Weights that a trainer of the pool has are there once."""
    if placed.shape is None or placed.role.shares in {entry.role for entry in placed.pool.roles}:
        return []
    if placed.backend == "diffusers":
        return sampler_lines(placed)
    return (
        engine_memory.weights_line(placed) if engine_memory.is_vllm(placed) else training_memory.resident_lines(placed)
    )


def host_memory(everyone: Sequence[tuple[Pool, tuple[Placed, ...]]], cluster: Cluster) -> tuple[Memory, ...]:
    """The node with most offloaded bytes against its memory; nothing where nothing is offloaded."""
    nodes: dict[str, int] = {}
    held: Counter[str] = Counter()
    here = {pool.name: Counter(device.rsplit("/", 1)[0] for device in pool.devices) for pool, _ in everyone}
    away = [(pool, each) for pool, placed in everyone for each in placed if _is_away(each)]
    for pool, each in away:
        state = bytes_of(off_device_lines(each))
        for node, count in here[pool.name].items():
            nodes[node] = group_of(pool, cluster).host_memory_bytes
            held[node] += state * count
    if not nodes:
        return ()
    node = max(nodes, key=lambda name: (held[name], name))
    lines = tuple(_on_node(each, here[pool.name][node], pool) for pool, each in away if here[pool.name][node])
    return (
        Memory(
            pool=HOST,
            device=node,
            phase="offloaded state",
            peak_bytes=bytes_of(lines),
            limit_bytes=nodes[node],
            lines=lines,
        ),
    )


def _is_away(placed: Placed) -> bool:
    return placed.offloaded and placed.shape is not None and not placed.device.is_cpu


def _on_node(placed: Placed, devices: int, pool: Pool) -> LedgerLine:
    lines = off_device_lines(placed)
    inputs = {
        "s": Given(bytes_of(lines), " + ".join(f"{each.what} ({each.formula})" for each in lines)),
        "d": Given(devices, f"devices of pool {pool.name} on this node"),
    }
    return line("offloaded state", placed.role.name, "bytes", "s*d", inputs)
