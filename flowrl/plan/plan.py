"""The Plan: the one value that the runtime reads. Frozen, canonical, without clock times; executes nothing."""

from __future__ import annotations

from typing import Any

import msgspec

from flowrl.diag.diagnostic import Diagnostic
from flowrl.graph.graph import Edge, Graph
from flowrl.machine.cluster import Cluster
from flowrl.program.program import Program

PLAN_VERSION = 1


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """A role's parallel shape on its pool: dp·tp·pp·cp devices."""

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1

    @property
    def devices(self) -> int:
        return self.dp * self.tp * self.pp * self.cp


class RolePlacement(msgspec.Struct, frozen=True, kw_only=True):
    role: str
    layout: Layout
    offloaded: bool = False
    """Whether it leaves the devices while another role of the pool works."""


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """A set of devices that its roles share in time. The pool `host` has CPU slots and no devices."""

    name: str
    devices: tuple[str, ...]
    """`node0/0`, …; empty for `host`."""
    device: str
    """Catalogue name of the device type; `host` for the host pool."""
    roles: tuple[RolePlacement, ...]
    slots: int = 1


class LedgerLine(msgspec.Struct, frozen=True, kw_only=True):
    """A number that opens up."""

    what: str
    role: str | None
    value: float
    unit: str
    formula: str
    inputs: dict[str, Any] = {}
    origins: dict[str, str] = {}
    """Where each input came from: `ppo.yaml:12:5`, `default`, `preset grpo`, `card …`, `catalogue …`, `decided D2`."""


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Peak of one phase on each device of a pool. The bytes lines add up to `peak_bytes`."""

    pool: str
    device: str
    phase: str
    peak_bytes: int
    limit_bytes: int
    lines: tuple[LedgerLine, ...]


class TimelineSpan(msgspec.Struct, frozen=True, kw_only=True):
    """One instruction of the steady state on the virtual clock."""

    instruction: str
    pool: str
    start_seconds: float
    seconds: float


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    step_seconds: float
    samples_per_second: float
    tokens_per_second: float
    busy: dict[str, float]
    """Share of the step in which each pool works."""
    timeline: tuple[TimelineSpan, ...]
    durations: dict[str, float]
    """Modelled seconds of each instruction."""
    critical: tuple[str, ...] = ()
    """Instructions of the circle that bounds the step, in the order in which each waits for the one before."""
    lines: tuple[LedgerLine, ...] = ()


class Rejected(msgspec.Struct, frozen=True, kw_only=True):
    option: str
    reason: str
    delta: str | None = None


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    """D1, D2, …"""
    what: str
    chosen: str
    reason: str
    """Coded: only_option, asked_for, fits, fastest, not_needed, …"""
    text: str
    rejected: tuple[Rejected, ...] = ()
    override: str | None = None
    """The key of the flow that overrides it."""


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    metric: str
    at_least: float | None = None
    at_most: float | None = None
    when: str = "end"
    otherwise: str = "stop"


class StageRun(msgspec.Struct, frozen=True, kw_only=True):
    steps: int
    seed: int = 0
    checkpoint_every_steps: int | None = None
    keep: int | None = None
    """How many checkpoints to keep; None keeps all."""
    loggers: tuple[str, ...] = ("tensorboard",)
    samples_logged: int = 4


class StagePlan(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    graph: Graph
    pools: tuple[Pool, ...]
    edges: tuple[Edge, ...]
    """The lowered edges: from, to, kind, fields, origin (the same values as in `graph.edges`)."""
    programs: Program
    memory: tuple[Memory, ...]
    estimate: Estimate
    decisions: tuple[Decision, ...]
    run: StageRun
    gate: Gate | None = None
    starts_from: dict[str, str] = {}
    """Model name → `STAGE.ROLE` whose checkpoint it starts from."""


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """A file the plan was made from or will read. `digest` is sha256; None if it does not exist at plan time."""

    path: str
    """Relative to the flow's folder."""
    role: str
    """flow, data, function or model."""
    digest: str | None = None


class Digests(msgspec.Struct, frozen=True, kw_only=True):
    flow: str
    cluster: str
    profile: str
    code: str


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    flowrl_plan: int = PLAN_VERSION
    name: str
    digests: Digests
    verdict: str
    """fits or infeasible."""
    cluster: Cluster
    folder: str = "."
    """Where relative paths of the flow start, relative to the plan file's folder when written, as given."""
    sources: tuple[Source, ...]
    run: StageRun
    stages: tuple[StagePlan, ...]
    diagnostics: tuple[Diagnostic, ...] = ()
