"""What moves when a plan gives way to one on another cluster, as values. Frozen; no logic but sums."""

from __future__ import annotations

import msgspec

from flowrl.diag.diagnostic import Diagnostic
from flowrl.plan.plan import LedgerLine

STAYS = "stays"
DEVICES = "device_to_device"
CHECKPOINT = "checkpoint"
FILES = "files"
SYNC = "next_sync"
SHARED = "shared"
ANEW = "started_anew"
GONE = "gone"
PAYS, NEVER, NOTHING = "pays_off", "never_pays_off", "nothing_moves"

STEP_BEFORE, STEP_AFTER, SAVED = "step before", "step after", "saved per step"
MOVING, MOVED, BREAK_EVEN = "moving", "bytes moved", "break-even"
STORED, STORED_BREAK_EVEN = "moving through a checkpoint", "break-even through a checkpoint"
COST_BEFORE, COST_AFTER = "GPU-seconds per step before", "GPU-seconds per step after"
PRICE_BEFORE, PRICE_AFTER = "price per step before", "price per step after"


class Home(msgspec.Struct, frozen=True, kw_only=True):
    """Where a role is."""

    pool: str
    layout: str
    """`dp4 tp2`."""
    devices: int
    device: str
    first: str
    last: str
    """The first and the last of its devices."""


class RoleMove(msgspec.Struct, frozen=True, kw_only=True):
    """One role with devices, before and after."""

    role: str
    before: Home | None
    after: Home | None
    way: str
    """stays: every rank has what it needs · device_to_device · checkpoint · files: of its model, which does not train ·
    next_sync: an engine takes its weights at the next hand-over · shared: with another role's weights · started_anew:
    nothing of it is kept · gone."""
    lines: tuple[LedgerLine, ...] = ()
    """Bytes by kind of state and link, their sum, and seconds."""
    instead: tuple[LedgerLine, ...] = ()
    """What it takes where nothing goes from device to device: through a checkpoint, or from the model's files."""


class StageMove(msgspec.Struct, frozen=True, kw_only=True):
    """A run that is in one stage of the flow."""

    name: str
    roles: tuple[RoleMove, ...]
    lines: tuple[LedgerLine, ...]
    """Bytes and seconds of all roles, the same through a checkpoint, the step before and after, what a step saves, and
    when that has paid for either."""
    steps: int
    """`run.steps`: how many there are to save in, at most."""
    verdict: str
    """pays_off: after `break_even` steps · never_pays_off: a step takes as long or longer · nothing_moves."""
    break_even: int | None = None

    def value(self, what: str) -> float | None:
        """Of the line of that name."""
        return next((line.value for line in self.lines if line.what == what), None)


class Replan(msgspec.Struct, frozen=True, kw_only=True):
    """What `flowrl plan FILE --from PLAN` says."""

    flowrl_replan: int = 1
    """Version of this format."""
    before: str
    """The kept plan's file."""
    after: str
    cluster_before: str
    cluster_after: str
    moved_digests: tuple[str, ...]
    """flow, cluster, profile, code: those that differ."""
    shared_devices: int
    """Devices of both clusters: of one name and one kind."""
    stages: tuple[StageMove, ...]
    """Those of both plans."""
    verdict_before: str
    """fits or infeasible: by a plan that does not fit nothing runs."""
    diagnostics: tuple[Diagnostic, ...] = ()
    """FR0745 where more than the cluster differs."""
