"""What a search looks at and what it finds: ways to share devices, and placements worked out in full. Frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from flowrl.machine.cluster import NodeGroup
from flowrl.placement.choices import Choices
from flowrl.placement.cost.role import Site
from flowrl.placement.request import LayoutRequest
from flowrl.plan.plan import Memory, Pool, SearchReport


@dataclass(frozen=True, slots=True)
class Draft:
    """A pool before layouts are chosen."""

    name: str
    devices: tuple[str, ...]
    group: NodeGroup
    roles: tuple[str, ...]
    layouts: Mapping[str, LayoutRequest] = field(default_factory=dict[str, LayoutRequest])


@dataclass(frozen=True, slots=True)
class Option:
    """Pools with their devices: what is decided before the roles' own choices."""

    label: str
    pools: tuple[Draft, ...]


@dataclass(frozen=True, slots=True)
class Pitch:
    """A pool whose devices are settled and whose roles' choices are not."""

    name: str
    roles: tuple[str, ...]
    group: NodeGroup
    devices: tuple[str, ...]
    site: Site
    """Devices that cost what these do."""


@dataclass(frozen=True, slots=True)
class Laid:
    """Pools with the choices of their roles, and what they need."""

    pools: tuple[Pool, ...]
    memory: tuple[Memory, ...]
    """Of devices without ledger lines, until the best placement is told."""

    @property
    def fits(self) -> bool:
        return all(entry.peak_bytes <= entry.limit_bytes for entry in self.memory)

    @property
    def tightest(self) -> Memory | None:
        return max(self.memory, key=lambda entry: entry.peak_bytes / max(1, entry.limit_bytes), default=None)

    @property
    def over(self) -> float:
        """Of the tightest entry, what it needs over what there is."""
        tightest = self.tightest
        return 0.0 if tightest is None else tightest.peak_bytes / max(1, tightest.limit_bytes)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A placement that was worked out."""

    option: Option
    laid: Laid
    seconds: float
    """Of a step."""
    value: float
    """Of the objective; seconds too unless the flow asks for another."""
    starved: bool = False
    """Whether some rank would have no row."""
    late: bool = False
    """Whether a step takes longer than the flow allows."""

    @property
    def usable(self) -> bool:
        return self.laid.fits and not self.starved and not self.late

    def rank(self) -> tuple[bool, bool, bool, float, float]:
        """The smaller the better: every rank has rows, it fits, it is in time, it is best by the objective (or, if
        nothing fits, near to fitting)."""
        fits = self.laid.fits
        return self.starved, not fits, self.late, self.value if fits else self.laid.over, self.seconds


@dataclass(frozen=True, slots=True)
class Found:
    """What a search gives."""

    best: Candidate
    tried: tuple[Candidate, ...]
    """The best of each way of pools that was worked out, in that order; `best` is one of them."""
    report: SearchReport
    choices: Choices
    """What the roles may be."""
    sites: Mapping[str, Site] = field(default_factory=dict[str, Site])
    """By role on devices, where `best` has it."""
    recomputed: Mapping[str, tuple[Candidate, ...]] = field(default_factory=dict[str, tuple[Candidate, ...]])
    """By trainer whose flow leaves it open: the best on the same pools with each other recomputation."""
    in_parts: Mapping[str, Candidate] = field(default_factory=dict[str, Candidate])
    """By label of their ways those that were compared once more, with the seconds of a step in which generation is
    handed on in parts."""

    @property
    def gap(self) -> float:
        """`best` is at most this share above the best of the space that was searched."""
        return self.report.gap

    @property
    def proved(self) -> bool:
        return self.report.exhaustive

    @property
    def looked_at(self) -> int:
        return self.report.looked_at
