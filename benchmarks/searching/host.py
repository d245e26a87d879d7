"""Memory of the hosts of a placement, over all choices: written again from the docstring of memory/host.py.

On each node: the processes of its ranks and a reserve in every phase; the largest of what roles read while they load;
what has left its devices and what the flow keeps on the host, with the rows of a step on the first node; and beside
that the checkpoint of each trainer that is not there already.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from benchmarks.searching.blocks import Block, Blocks, Devices, Flags, Numbers
from flowrl.graph.graph import Kind
from flowrl.placement.cost.role import RoleCost

_ROW_TOKEN_BYTES = 32


class Host:
    def __init__(self, blocks: Blocks) -> None:
        self.blocks, self.graph, self.work = blocks, blocks.graph, blocks.work
        writing = [op for op in self.graph.ops if self.work.writes_text(op)]
        tokens = (self.work.rows(op).count * self.work.lengths(op).most for op in writing)
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
        reads, saves = [0.0], []
        away: Numbers | float = rows
        for block, count in zip(blocks, counts, strict=True):
            for role in block.roles if count else ():
                cost: RoleCost = block.costs[role].flat[0]
                if not cost.has_model:
                    continue
                away = away + (block.off_device[role] + block.on_host[role]) * count
                share = count / block.site.count
                if self.graph.role(role).kind is not Kind.GENERATOR:
                    reads.append(self._read(cost, share))
                if self.graph.role(role).trainable:
                    whole = cost.placed.adapter or cost.placed.model.parameters
                    saves.append((block.stays[role], 12 * whole * share))
        found: Flags = np.asarray(away <= room) & (max(reads) <= room)
        for stays, whole in saves:
            found = found & (away + stays * whole <= room)
        return found

    def _read(self, cost: RoleCost, share: float) -> float:
        placed, role = cost.placed, self.graph.role(cost.name)
        full = role.trainable and not placed.adapter
        whole = placed.model.parameters * (4 if full else placed.dtype_bytes)
        return whole if role.trainable and role.engine.load == "broadcast" else whole * share
