"""Seconds of a step of a placement, over all choices: written again from the docstring of time/step.py.

Ops go greedily in data order, each pool doing one thing at a time, the members of an interaction together. With lag k a
step takes the longer of the busiest pool and of the chain, hand-overs of weights with it, divided by 1 + k.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.searching.blocks import Block, Blocks, Devices, Numbers
from flowrl.graph.graph import Edge, EdgeKind
from flowrl.placement.cost.role import Site


class Clock:
    def __init__(self, blocks: Blocks) -> None:
        self.blocks, self.graph = blocks, blocks.graph
        self.order = self._data_order()
        tokens = [edge.tokens - 1 for edge in blocks.weights if edge.every_updates is None]
        self.lag = min(tokens, default=self.graph.schedule.max_lag)
        self._hand_overs: dict[tuple[object, ...], Numbers] = {}

    def seconds(self, blocks: Sequence[Block], devices: Sequence[Devices]) -> Numbers:
        home = {role: place for place, block in enumerate(blocks) for role in block.roles}
        nothing = np.zeros([1] * len(self.blocks.axis))
        busy: dict[int, Numbers] = {}
        load: dict[int, Numbers] = {}
        ready: dict[str, Numbers] = {}
        for id, sources in self.order:
            op, place = self.graph.op(id), home.get(self.graph.op(id).role)
            own = nothing + self.blocks.costs.host_seconds(op) if place is None else blocks[place].seconds[id]
            moves = nothing if place is None else blocks[place].moves[op.role]
            took = (own * op.firings + moves) / max(1, op.every_steps)
            start = nothing
            for source in sources:
                start = np.maximum(start, ready[source])
            if place is not None:
                start = np.maximum(start, busy.get(place, nothing))
                load[place] = load.get(place, nothing) + took
            ready[id] = start + took
            if place is not None:
                busy[place] = ready[id]
        chain = nothing
        for end in ready.values():
            chain = np.maximum(chain, end)
        for edge in self.blocks.weights:
            chain = chain + self._hand_over(edge, blocks, devices, home)
        step = chain / (1 + self.lag)
        for each in load.values():
            step = np.maximum(step, each)
        return step

    def _hand_over(
        self, edge: Edge, blocks: Sequence[Block], devices: Sequence[Devices], home: dict[str, int]
    ) -> Numbers | float:
        giver, taker = edge.source.split(".")[0], edge.target.split(".")[0]
        if giver not in home or taker not in home:
            return 0.0
        source, target = blocks[home[giver]], blocks[home[taker]]
        if not source.costs[giver].flat[0].has_model:
            return 0.0
        key = (edge.id, source.site.key, target.site.key, *pattern(devices[home[giver]], devices[home[taker]]))
        found = self._hand_overs.get(key)
        if found is None:
            here = self.blocks.site(devices[home[giver]], source.site.group.name)
            there = self.blocks.site(devices[home[taker]], target.site.group.name)
            found = self._hand_overs[key] = self._counted(edge, source, here, target, there)
        return found

    def _counted(self, edge: Edge, source: Block, here: Site, target: Block, there: Site) -> Numbers:
        """Over the choices of both ends, of which layouts alone matter."""
        giver, taker = edge.source.split(".")[0], edge.target.split(".")[0]
        axes = len(self.blocks.axis)
        gives, takes = source.choices[giver], target.choices[taker]
        shape = [1] * axes
        shape[self.blocks.axis[giver]], shape[self.blocks.axis[taker]] = len(gives), len(takes)
        known: dict[tuple[object, object], float] = {}
        found = np.zeros(shape)
        for one, give in enumerate(gives):
            for other, take in enumerate(takes):
                at = [0] * axes
                at[self.blocks.axis[giver]], at[self.blocks.axis[taker]] = one, other
                layouts = (give.layout, take.layout)
                if layouts not in known:
                    ends = (self.blocks.costs.role_cost(give, here), self.blocks.costs.role_cost(take, there))
                    known[layouts] = sum(self.blocks.costs.hand_over(edge, (ends[0], here), (ends[1], there)))
                found[tuple(at)] = known[layouts]
        return found

    def _data_order(self) -> list[tuple[str, list[str]]]:
        """Ops such that each comes after those that it reads or must follow, generation after generation."""
        before: dict[str, list[str]] = {op.id: [] for op in self.graph.ops}
        after: dict[str, list[str]] = {op.id: [] for op in self.graph.ops}
        read: dict[str, list[str]] = {op.id: [] for op in self.graph.ops}
        for edge in self.graph.edges:
            ordered = edge.kind in (EdgeKind.DATA, EdgeKind.STATE) and edge.tokens == 0
            if ordered and edge.target not in after[edge.source]:
                after[edge.source].append(edge.target)
                before[edge.target].append(edge.source)
            if edge.kind is EdgeKind.DATA:
                read[edge.target].append(edge.source)
        waiting = {id: len(each) for id, each in before.items()}
        found = [id for id, count in waiting.items() if count == 0]
        for id in found:
            for each in after[id]:
                waiting[each] -= 1
                if waiting[each] == 0:
                    found.append(each)
        return [(id, read[id]) for id in found]


def pattern(source: Devices, target: Devices) -> tuple[tuple[int, ...], ...]:
    """Which devices of two pools are the same, and which share a node, whatever their names."""
    names = {name: at for at, name in enumerate(dict.fromkeys((*source, *target)))}
    nodes = {node: at for at, node in enumerate(dict.fromkeys(map(node_of, names)))}
    here, there = (tuple(names[each] for each in side) for side in (source, target))
    return here, there, tuple(nodes[node_of(name)] for name in names)


def node_of(device: str) -> str:
    return device.rpartition("/")[0]
