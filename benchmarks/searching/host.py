"""Memory of the hosts of a placement, over all choices: written again from the docstring of memory/host.py.

On each node: the processes of its ranks and a reserve in every phase; the largest of what roles read while they load;
what has left its devices and what the flow keeps on the host, with the rows of a step on the first node; and beside
that the checkpoint of each trainer that is not there already.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.searching.blocks import Block, Blocks, Devices, Flags, Numbers
from flowrl.graph.graph import Kind
from flowrl.placement.cost.role import RoleCost

_ROW_TOKEN_BYTES = 32


@dataclass(frozen=True)
class _Loads:
    """Bytes on a node for each device that a block has there."""

    away: Numbers
    """What has left its devices, and what is on the host always."""
    saves: tuple[Numbers, ...]
    """The checkpoint of each trainer."""
    read: float
    """The largest of what its roles read while they load."""
    whole: float
    """The same of roles that one rank reads for all, on the node whatever its devices."""
    most: float
    """No choice needs more."""


class Host:
    def __init__(self, blocks: Blocks) -> None:
        self.blocks, self.graph, self.work = blocks, blocks.graph, blocks.work
        writing = [op for op in self.graph.ops if self.work.writes_text(op)]
        tokens = (self.work.rows(op).count * self.work.lengths(op).most for op in writing)
        self._known: dict[tuple[object, ...], _Loads] = {}
        self.rows = float(_ROW_TOKEN_BYTES * max(tokens, default=0))

    def fits(self, blocks: Sequence[Block], devices: Sequence[Devices]) -> Flags:
        known = self.blocks.instance.request.profile.memory
        here = [Counter(device.rpartition("/")[0] for device in taken) for taken in devices]
        limits = {
            node: block.site.group.host_memory_bytes for block, on in zip(blocks, here, strict=True) for node in on
        }
        first = next(iter(limits))
        found = np.ones([1] * len(self.blocks.axis), dtype=bool)
        sorts: set[tuple[object, ...]] = set()
        for node, limit in limits.items():
            counts = [on[node] for on in here]
            sort = (*counts, limit, node == first)
            if sort in sorts:
                continue
            sorts.add(sort)
            ranks = sum(count * len(block.roles) for count, block in zip(counts, blocks, strict=True))
            room = limit - known.host_process_bytes * ranks - known.host_reserve_share * limit
            found = found & self._node(blocks, counts, room, self.rows if node == first else 0.0)
        return found

    def _node(self, blocks: Sequence[Block], counts: Sequence[int], room: float, rows: float) -> Flags:
        here = [(self._loads(block), count) for block, count in zip(blocks, counts, strict=True) if count]
        most = rows + sum(load.most * count for load, count in here)
        reads = max((max(load.read * count, load.whole) for load, count in here), default=0.0)
        if max(most, reads) <= room:  # whatever is chosen
            return np.ones([1] * len(self.blocks.axis), dtype=bool)
        away: Numbers | float = rows
        for load, count in here:
            away = away + load.away * count
        found: Flags = np.asarray(away <= room) & (reads <= room)
        for load, count in here:
            for saved in load.saves:
                found = found & (away + saved * count <= room)
        return found

    def _loads(self, block: Block) -> _Loads:
        key = (block.roles, block.site.key)
        if key not in self._known:
            self._known[key] = self._counted(block)
        return self._known[key]

    def _counted(self, block: Block) -> _Loads:
        reads, saves = {False: 0.0, True: 0.0}, list[Numbers]()
        away: Numbers | float = 0.0
        for role in block.roles:
            cost: RoleCost = block.costs[role].flat[0]
            if not cost.has_model:
                continue
            away = away + block.off_device[role] + block.on_host[role]
            if self.graph.role(role).kind is not Kind.GENERATOR:
                whole = self._is_broadcast(role)
                reads[whole] = max(reads[whole], self._read(cost, 1 if whole else block.site.count))
            if self.graph.role(role).trainable:
                trained = cost.placed.adapter or cost.placed.model.parameters
                saves.append(block.stays[role] * (12 * trained / block.site.count))
        away = np.asarray(away)
        most = float(away.max()) + max((float(each.max()) for each in saves), default=0.0)
        return _Loads(away, tuple(saves), reads[False], reads[True], most)

    def _is_broadcast(self, role: str) -> bool:
        """Whether one rank of the node reads all, however many there are."""
        return self.graph.role(role).trainable and self.graph.role(role).engine.load == "broadcast"

    def _read(self, cost: RoleCost, devices: int) -> float:
        placed, role = cost.placed, self.graph.role(cost.name)
        full = role.trainable and not placed.adapter
        return placed.model.parameters * (4 if full else placed.dtype_bytes) / devices
