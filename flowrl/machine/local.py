"""The cluster `local`: this machine's cores and memory, asked of the operating system. No torch, no GPU."""

from __future__ import annotations

import os

import msgspec

from flowrl.machine.cluster import Cluster
from flowrl.machine.devices import DEVICE_CARDS, node_group

LOCAL = "local"


def local_cluster() -> Cluster:
    """One node of `cpu` slots, one a core that this process may use. Its memory is that of the whole machine: slots
    share it, so each device's `memory_bytes` is the node's (placement divides it among the slots in use)."""
    card = DEVICE_CARDS["cpu"]
    memory_bytes = machine_memory_bytes() or card.node_memory_bytes
    device = msgspec.structs.replace(card.device, memory_bytes=memory_bytes)
    group = msgspec.structs.replace(
        node_group(card, "nodes", 1, _cores()), device=device, host_memory_bytes=memory_bytes
    )
    return Cluster(name=LOCAL, groups=(group,))


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def machine_memory_bytes() -> int | None:
    """Physical memory, or the limit of the control group this process lives in if that is lower."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
    limit = _cgroup_limit_bytes()
    return total if limit is None else min(total, limit)


def _cgroup_limit_bytes() -> int | None:
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            with open(path, encoding="ascii") as file:
                text = file.read().strip()
        except OSError:
            continue
        return int(text) if text.isdigit() else None
    return None
