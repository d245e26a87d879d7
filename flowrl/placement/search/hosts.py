"""The least that hosts need of roles of which some have no choice yet: what ends a leaf early where their memory binds.

Takes what stands on each sort of node (memory/host.py) and the stays of roles; says whether some node has too little
whatever the open ones choose. It never says so of choices that `host_memory` lets pass. Knows no devices and no time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flowrl.placement.memory.host import Standing
from flowrl.placement.search.stays import Stay

Held = tuple[int, int]
"""Of a role on a node: what it has there while others work, and what while it is saved."""


class HostRoom:
    """Of one leaf."""

    def __init__(
        self, nodes: Sequence[Standing], pool_of: Mapping[str, str], stays: Mapping[str, Sequence[Stay]]
    ) -> None:
        """`pool_of`: by role. `stays`: what each may be; none where that depends on the others: it then counts as
        nothing until it is put."""
        self._nodes, self._pool_of = nodes, pool_of
        self._open = {role: [self._least(role, mine, node) for node in nodes] for role, mine in stays.items()}
        self._held = dict(self._open)

    def put(self, role: str, stay: Stay) -> None:
        """It has this choice."""
        self._held[role] = [self._of(role, stay, node) for node in self._nodes]

    def take(self, role: str) -> None:
        """It is open again."""
        self._held[role] = self._open[role]

    def is_over(self) -> bool:
        """Whether some node has too little memory, whatever the open roles choose."""
        held = self._held.values()
        for place, node in enumerate(self._nodes):
            away = node.always + sum([each[place][0] for each in held])
            saving = max([each[place][1] - each[place][0] for each in held], default=0)
            if max(away + saving, node.loading) > node.limit:
                return True
        return False

    def _least(self, role: str, stays: Sequence[Stay], node: Standing) -> Held:
        held = [self._of(role, stay, node) for stay in stays]
        return (min(away for away, _ in held), min(saved for _, saved in held)) if held else (0, 0)

    def _of(self, role: str, stay: Stay, node: Standing) -> Held:
        cost, devices = stay.cost, node.devices.get(self._pool_of[role], 0)
        away = devices * (cost.host_bytes + (cost.off_device_bytes if cost.offloaded else 0))
        return away, away if cost.offloaded else away + node.saving.get(role, 0)
