"""Seconds of collectives as parts of a ledger formula: latency of a tree, bytes over the slowest link of the group.

A ring moves 2(n-1)/n of the bytes for an all-reduce and (n-1)/n for a gather, a scatter or an exchange of all with all
(NCCL's bus bandwidth, nccl-tests doc/PERFORMANCE.md); double binary trees reach the same bandwidth with a latency of
the logarithm of ranks (NCCL 2.4). So both terms are those of the better algorithm. Takes groups of ranks; knows no
model.
"""

from __future__ import annotations

from flowrl.placement.cost.ledger import Given
from flowrl.placement.cost.rates import Group


def group_inputs(name: str, group: Group) -> dict[str, Given]:
    """`Zname` bytes a second, `Aname` seconds of passing through the group once."""
    return {
        f"Z{name}": Given(group.bytes_per_second, group.how),
        f"A{name}": Given(group.seconds, f"latency over {group.size} ranks, {group.inside} in a node"),
    }


def exchange_inputs(name: str, group: Group) -> dict[str, Given]:
    """The same for an exchange of all with all: what goes to other nodes takes a rank's own network cards, the rest the
    device link, both at once."""
    out = (group.size - group.inside) / max(1, group.size - 1)
    slow = max(out / group.alone_bytes_per_second, (1.0 - out) / group.link_bytes_per_second)
    how = f"{out:.0%} of it to other nodes"
    return {
        f"Z{name}": Given(1.0 / slow, how),
        f"A{name}": Given(group.seconds, f"latency over {group.size} ranks, {group.inside} in a node"),
    }


def all_reduce_seconds(group: Group, bytes: float) -> float:
    """Seconds of one all-reduce of `bytes` on each rank."""
    if group.size < 2:
        return 0.0
    return 2 * group.seconds + 2 * (group.size - 1) / group.size * bytes / group.bytes_per_second
