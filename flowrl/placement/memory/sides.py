"""What a role holds on its devices, as far as the phases of a pool are made of it: in ledger lines, or in bytes alone.

Both add up, so the phases of a pool are put together once for both: with lines for a plan, with bytes for a search.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from flowrl.graph.graph import Op
from flowrl.plan.plan import LedgerLine

T = TypeVar("T", list[LedgerLine], int)
T_co = TypeVar("T_co", list[LedgerLine], int, covariant=True)


class Side(Protocol[T_co]):
    """One role of a pool. `stage` is the pipeline stage that the device has of it."""

    @property
    def name(self) -> str: ...
    @property
    def pp(self) -> int: ...
    @property
    def offloaded(self) -> bool: ...
    @property
    def has_model(self) -> bool: ...
    @property
    def wakes(self) -> bool:
        """Whether it is an engine on a GPU that sleeps while others work."""
        ...

    @property
    def staged(self) -> bool:
        """Whether it wakes its weights first and its cache later."""
        ...

    def load(self, stage: int) -> T_co | None:
        """While it is loaded; None for what loads no model, and for engines, which start against their own share."""
        ...

    def start(self) -> tuple[T_co, int] | None:
        """What an engine on a GPU must find room for when it starts, and in how many bytes."""
        ...

    def at_work(self, op: Op, stage: int) -> T_co: ...
    def resident(self, stage: int) -> T_co:
        """Between its ops, if it stays."""
        ...

    def left(self, stage: int) -> T_co:
        """On the device while another role works there."""
        ...

    def grown(self, stage: int) -> T_co:
        """Blocks that the allocator of a trainer that stays keeps after its update, when an engine has woken."""
        ...

    def sent(self) -> T_co:
        """Beside what it holds while its weights are sent."""
        ...

    def received(self) -> T_co:
        """Beside what it holds while new weights come in."""
        ...

    def awake(self) -> T_co:
        """Of an engine whose weights are awake and whose cache is not."""
        ...
