"""Seconds of a step of a placement, over all choices: the program that it gets, emitted, and its circles.

A step takes as long as the circle of its program that is longest for its steps. The program depends on which roles
share a pool alone, so it is emitted once for each way to put them together; seconds come from RoleCosts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import structs

from benchmarks.searching.blocks import Block, Blocks, Devices, Numbers
from benchmarks.searching.circles import Circles, Part, circles
from flowrl.compiler.emit.program import emit
from flowrl.graph.graph import Edge, Graph, Kind
from flowrl.placement.cost.placed import needs_devices
from flowrl.placement.cost.role import RoleCost, Site
from flowrl.plan.plan import Layout, Pool, RolePlacement, StageRun

Parts = tuple[tuple[str, ...], ...]


class Clock:
    def __init__(self, blocks: Blocks) -> None:
        self.blocks, self.graph = blocks, blocks.graph
        self._circles: dict[Parts, Circles] = {}
        self._own: dict[tuple[object, ...], Numbers] = {}
        self._synced: dict[tuple[object, ...], tuple[Numbers, Numbers]] = {}

    def seconds(self, blocks: Sequence[Block], devices: Sequence[Devices]) -> Numbers:
        parts = tuple(block.roles for block in blocks)
        found = self._circles.get(parts)
        if found is None:
            found = self._circles[parts] = circles(
                emit(whole_responses(self.graph), self._pools(parts), StageRun(steps=2))
            )
        total = self._host(parts, found)
        for block in blocks:
            for role in block.roles:
                total = total + self._of(role, block, parts, found)
        home = {role: place for place, block in enumerate(blocks) for role in block.roles}
        for edge in self.blocks.weights:
            giver, taker = edge.source.split(".")[0], edge.target.split(".")[0]
            if giver in home and taker in home and blocks[home[giver]].costs[giver].flat[0].has_model:
                ends = (home[giver], home[taker])
                sent, received = self._hand_over(edge, [blocks[at] for at in ends], [devices[at] for at in ends])
                total = total + self._column(found, "send_weights", giver, edge.id) * sent
                total = total + self._column(found, "receive_weights", taker, edge.id) * received
        return (total / self._along(found.tokens)).max(axis=0)

    def _host(self, parts: Parts, found: Circles) -> Numbers:
        """What runs on the host takes the same whatever is chosen."""
        key = (parts, "host")
        if key not in self._own:
            total = self._along(np.zeros(len(found.tokens)))
            for part in found.parts:
                if part.kind == "run" and not needs_devices(self.graph.role(part.role)):
                    seconds = self.blocks.costs.host_seconds(self.graph.op(part.what))
                    total = total + self._column(found, *_named(part)) * seconds
            self._own[key] = total
        return self._own[key]

    def _of(self, role: str, block: Block, parts: Parts, found: Circles) -> Numbers:
        """Ops and moves of a role on each circle."""
        key = (parts, role, block.site.key)
        if key not in self._own:
            costs = block.costs[role]
            whole = self.blocks.over(costs, lambda c: c.move_seconds if c.offloaded else 0.0)
            cache = self.blocks.over(costs, self._cache_seconds)
            took = {"load": whole - cache, "cache": cache, "offload": whole}
            total = self._along(np.zeros(len(found.tokens)))
            for part in found.parts:
                if part.role == role and part.kind in ("run", *took):
                    seconds = block.seconds[part.what] if part.kind == "run" else took[part.kind]
                    total = total + self._column(found, *_named(part)) * seconds
            self._own[key] = total
        return self._own[key]

    def _cache_seconds(self, cost: RoleCost) -> float:
        """An engine that wakes in two parts has half of what is fixed with each."""
        if not (cost.offloaded and cost.staged and self.graph.role(cost.name).kind is Kind.GENERATOR):
            return 0.0
        return min(cost.placed.profile.fixed.wake_seconds, cost.move_seconds) / 2

    def _column(self, found: Circles, kind: str, role: str, what: str) -> Numbers:
        """How often each circle has a part."""
        for place, part in enumerate(found.parts):
            if (part.kind, part.role, part.what) == (kind, role, what):
                return self._along(found.counts[:, place])
        return self._along(np.zeros(len(found.tokens)))

    def _along(self, values: Numbers) -> Numbers:
        """By circle, which is the axis before those of the roles."""
        return values.reshape(len(values), *([1] * len(self.blocks.axis)))

    def _pools(self, parts: Parts) -> list[Pool]:
        def placed(roles: Sequence[str]) -> tuple[RolePlacement, ...]:
            return tuple(RolePlacement(role=role, layout=Layout()) for role in roles)

        away = [role.name for role in self.graph.roles if not needs_devices(role)]
        host = Pool(name="host", devices=(), device="host", roles=placed(away), slots=max(2, len(away)))
        given = [Pool(name=own[0], devices=(own[0],), device="", roles=placed(own)) for own in parts]
        return [*given, host] if away else given

    def _hand_over(self, edge: Edge, ends: Sequence[Block], devices: Sequence[Devices]) -> tuple[Numbers, Numbers]:
        source, target = ends
        key = (edge.id, source.site.key, target.site.key, *pattern(*devices))
        found = self._synced.get(key)
        if found is None:
            here, there = (self.blocks.site(on, end.site.group.name) for on, end in zip(devices, ends, strict=True))
            found = self._synced[key] = self._counted(edge, source, here, target, there)
        return found

    def _counted(self, edge: Edge, source: Block, here: Site, target: Block, there: Site) -> tuple[Numbers, Numbers]:
        """Over the choices of both ends, of which layouts alone matter."""
        giver, taker = edge.source.split(".")[0], edge.target.split(".")[0]
        axes = len(self.blocks.axis)
        gives, takes = source.choices[giver], target.choices[taker]
        shape = [1] * axes
        shape[self.blocks.axis[giver]], shape[self.blocks.axis[taker]] = len(gives), len(takes)
        known: dict[tuple[object, object], tuple[float, float]] = {}
        sent, received = np.zeros(shape), np.zeros(shape)
        for one, give in enumerate(gives):
            for other, take in enumerate(takes):
                at = [0] * axes
                at[self.blocks.axis[giver]], at[self.blocks.axis[taker]] = one, other
                layouts = (give.layout, take.layout)
                if layouts not in known:
                    ends = (self.blocks.costs.role_cost(give, here), self.blocks.costs.role_cost(take, there))
                    known[layouts] = self.blocks.costs.hand_over(edge, (ends[0], here), (ends[1], there))
                sent[tuple(at)], received[tuple(at)] = known[layouts]
        return sent, received


def whole_responses(graph: Graph) -> Graph:
    """With responses that end in their step. A session that goes on from step to step is one lane's work still: its
    pause, weights, resumption and only take stand where the call and its weights stood."""
    return structs.replace(graph, schedule=structs.replace(graph.schedule, partial_rollout=False))


def _named(part: Part) -> tuple[str, str, str]:
    return part.kind, part.role, part.what


def pattern(source: Devices, target: Devices) -> tuple[tuple[int, ...], ...]:
    """Which devices of two pools are the same, and which share a node, whatever their names."""
    names = {name: at for at, name in enumerate(dict.fromkeys((*source, *target)))}
    nodes = {node: at for at, node in enumerate(dict.fromkeys(map(node_of, names)))}
    here, there = (tuple(names[each] for each in side) for side in (source, target))
    return here, there, tuple(nodes[node_of(name)] for name in names)


def node_of(device: str) -> str:
    return device.rpartition("/")[0]
