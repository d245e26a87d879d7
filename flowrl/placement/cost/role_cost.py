"""What one role costs in one layout on devices of one kind, as numbers: values that a search compares.

Takes nothing; cost/making.py makes them from ledger lines. Knows no candidates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec

from flowrl.graph.graph import Op
from flowrl.placement.cost.ledger import numbers_only
from flowrl.placement.cost.placed import Placed
from flowrl.placement.cost.site import Key
from flowrl.placement.time.ops import OpTime
from flowrl.plan.plan import LedgerLine, Pool, RolePlacement


class RoleCost(msgspec.Struct, frozen=True, eq=False, gc=False):
    """One role on a Site: bytes of a device, by pipeline stage where they differ, and seconds of a firing.

    It is a Side of memory/sides.py in bytes.
    """

    name: str
    pp: int
    offloaded: bool
    has_model: bool
    wakes: bool
    staged: bool
    counted: bool
    """Whether a pool's line of processes counts it."""
    held: tuple[int, ...]
    remains: tuple[int, ...]
    """While another role works there."""
    work: tuple[Mapping[str, int], ...]
    """By op: what it holds then, resident bytes among them."""
    loading: tuple[int, ...] | None
    starting: tuple[int, int] | None
    blocks: tuple[int, ...]
    sends: int
    receives: int
    woken: int
    off_device_bytes: int
    """What is copied to the host when it leaves a device."""
    host_bytes: int
    """What is on the host always, for each device."""
    seconds: Seconds
    """Of its ops, with nobody else in sight: of an interaction its own part."""
    move_seconds: float
    """To leave its devices, or to come back."""
    own_peak: int
    """The most of its own lines on a device, over stages, while it loads or works."""
    alone: int
    """The same while it has the devices to itself, weights that come and go among them."""
    key: Key
    as_asked: Placed
    """The first such role that was asked for, if it stays on its devices."""

    @property
    def placed(self) -> Placed:
        """The first such role that was asked for. Its devices may have no names: see `on`."""
        here = self.as_asked
        if not self.offloaded:
            return here
        entry = RolePlacement(
            role=self.name,
            layout=here.layout,
            offloaded=True,
            recompute=here.recompute,
            micro_batch_tokens=here.micro_batch_tokens,
            memory_share=here.memory_share,
        )
        return here.elsewhere(here.pool, entry, here.layout_origin, here.shared, here.count, here.linked)

    def on(self, pool: Pool) -> Placed:
        """The role in a pool on devices of the same kind, for who needs lines. Origins may name another pool."""
        return replace(self.placed, pool=pool)

    def load(self, stage: int) -> int | None:
        return None if self.loading is None else self.loading[stage]

    def start(self) -> tuple[int, int] | None:
        return self.starting

    def at_work(self, op: Op, stage: int) -> int:
        return self.work[stage][op.id]

    def resident(self, stage: int) -> int:
        return self.held[stage]

    def left(self, stage: int) -> int:
        return self.remains[stage]

    def grown(self, stage: int) -> int:
        return self.blocks[stage]

    def sent(self) -> int:
        return self.sends

    def received(self) -> int:
        return self.receives

    def awake(self) -> int:
        return self.woken


class Seconds:
    """Of one firing of each op of a role, by its id; worked out when it is first asked for."""

    __slots__ = ("_known", "_others", "_placed", "_times")

    def __init__(self, times: OpTime, placed: Placed, others: dict[str, float]) -> None:
        """`others`: of ops that recomputation does not change, shared by all that differ in it alone."""
        self._times, self._placed, self._others = times, placed, others
        self._known: dict[str, float] = {}

    def __getitem__(self, op: str) -> float:
        found = self._known.get(op)
        if found is None:
            here = self._times.work.graph.op(op)
            found = self._others.get(op) if here.method != "update" else None
            if found is None:
                with numbers_only():
                    found = total(self._times.on_devices(self._placed, here))
            self._known[op] = found
            if here.method != "update":
                self._others[op] = found
        return found


def total(lines: Sequence[LedgerLine]) -> float:
    """Sum of the lines' values."""
    found = 0.0
    for each in lines:
        found += each.value
    return found
