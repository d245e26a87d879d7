"""The oracle: every placement of an instance there is, one after another, and the best of them.

Plain enumeration: set partitions of the roles, for each block a group and a number of devices, for each role a choice
of its menu. Shares no code with the search. Nothing is cut off; choices of one placement are evaluated as arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.searching.blocks import Block, Blocks, Devices, Flags, Numbers, homes, set_partitions
from benchmarks.searching.clock import Clock
from benchmarks.searching.host import Host
from benchmarks.searching.instances import Instance
from flowrl.machine.cluster import Cluster
from flowrl.placement.choices import Choices
from flowrl.plan.plan import Pool

Home = tuple[str, int]
"""A group and a number of its devices."""


@dataclass(frozen=True)
class Way:
    """The best choices on pools of one shape."""

    blocks: tuple[tuple[str, ...], ...]
    homes: tuple[Home, ...]
    seconds: float
    at: tuple[int, ...]
    """The choice of each role."""

    @property
    def devices(self) -> int:
        return sum(count for _, count in self.homes)


@dataclass(frozen=True)
class Answer:
    ways: tuple[Way, ...]
    """The fastest choices of every shape that fits."""
    free_seconds: float
    """Of the best placement if memory did not matter; inf if every one has ranks without rows."""
    looked_at: int

    @property
    def best(self) -> Way | None:
        """The fastest; of equals the one on fewest devices."""
        return min(self.ways, key=lambda way: (way.seconds, way.devices), default=None)

    def least(self, objective: str, cluster: Cluster, at_most: float = float("inf")) -> float | None:
        """The least that `objective` can be with a step of `at_most` seconds; None if no step is so short."""
        ways = (way for way in self.ways if way.seconds <= at_most)
        return min((worth(objective, way.seconds, way.homes, cluster) for way in ways), default=None)


class Oracle:
    def __init__(self, instance: Instance, choices: Choices) -> None:
        self.instance = instance
        self.blocks = Blocks(instance, choices)
        self.clock = Clock(self.blocks)
        self.host = Host(self.blocks)

    def answer(self) -> Answer:
        groups = [(group.name, group.nodes * group.devices_per_node) for group in self.instance.cluster.groups]
        ways: list[Way] = []
        free, looked_at = float("inf"), 0
        for parts in set_partitions(self.instance.roles):
            for where in homes(len(parts), groups):
                if not self._keeps_apart(parts):
                    continue
                blocks, devices = self.at(parts, where)
                if any(block.empty for block in blocks):
                    continue
                seconds, legal = self.clock.seconds(blocks, devices), _all([block.legal for block in blocks])
                looked_at += seconds.size
                free = min(free, _least(seconds, legal)[0])
                fits = _all([legal, *(block.fits for block in blocks)])
                if fits.any():
                    fits = fits & self.host.fits(blocks, devices)
                    least, at = _least(seconds, fits)
                    if np.isfinite(least):
                        ways.append(Way(parts, where, least, at))
        return Answer(tuple(ways), free, looked_at)

    def at(
        self, parts: Sequence[tuple[str, ...]], where: Sequence[Home]
    ) -> tuple[tuple[Block, ...], tuple[Devices, ...]]:
        devices = allocated(self.instance.cluster, where)
        sites = [self.blocks.site(each, group) for each, (group, _) in zip(devices, where, strict=True)]
        return tuple(self.blocks.block(roles, site) for roles, site in zip(parts, sites, strict=True)), devices

    def pools(self, way: Way) -> tuple[Pool, ...]:
        """The placement as a plan would hold it."""
        found: list[Pool] = []
        blocks, devices = self.at(way.blocks, way.homes)
        for block, taken in zip(blocks, devices, strict=True):
            entries = tuple(block.choices[role][way.at[self.blocks.axis[role]]] for role in block.roles)
            found.append(Pool(name=block.roles[0], devices=taken, device=block.site.pool.device, roles=entries))
        return tuple(found)

    def _keeps_apart(self, parts: Sequence[tuple[str, ...]]) -> bool:
        return all(sum(role in part for role in apart) < 2 for apart in self.instance.request.apart for part in parts)


def worth(objective: str, seconds: float, homes: Sequence[Home], cluster: Cluster) -> float:
    """What placement minimises: seconds of a step, those times devices, their price, or the number of devices. An hour
    of a device costs what its group says."""
    devices = sum(count for _, count in homes)
    if objective == "price":
        hourly = {group.name: group.price_per_gpu_hour or 0.0 for group in cluster.groups}
        return seconds * sum(hourly[group] * count for group, count in homes) / 3600
    return {"step_time": seconds, "gpu_seconds": seconds * devices, "gpus": float(devices)}[objective]


def _all(flags: Sequence[Flags]) -> Flags:
    found = flags[0]
    for each in flags[1:]:
        found = found & each
    return found


def _least(seconds: Numbers, where: Flags) -> tuple[float, tuple[int, ...]]:
    masked = np.where(where, seconds, np.inf)
    at = np.unravel_index(int(np.argmin(masked)), masked.shape)
    return float(masked[at]), tuple(int(each) for each in at)


def allocated(cluster: Cluster, where: Sequence[Home]) -> tuple[Devices, ...]:
    """Devices of each pool, the largest pool first, of equals the first: within the fullest node that has room, else
    from whole nodes on."""
    free: dict[str, list[list[str]]] = {}
    for group in cluster.groups:
        stem = f"{group.name}/" if len(cluster.groups) > 1 else ""
        names = [[f"{stem}node{node}/{at}" for at in range(group.devices_per_node)] for node in range(group.nodes)]
        free[group.name] = names
    found: dict[int, Devices] = {}
    for place in sorted(range(len(where)), key=lambda place: -where[place][1]):
        group, count = where[place]
        nodes = free[group]
        tight = [node for node in nodes if len(node) >= count]
        order = [min(tight, key=len)] if tight else sorted(nodes, key=len, reverse=True)
        taken: list[str] = []
        for node in order:
            part = node[: count - len(taken)]
            taken += part
            del node[: len(part)]
        found[place] = tuple(taken)
    return tuple(found[place] for place in range(len(where)))
