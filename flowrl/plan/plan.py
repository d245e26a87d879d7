"""The Plan: the one value that the runtime reads. Frozen, canonical, without clock times; executes nothing."""

from __future__ import annotations

from typing import Any

import msgspec

from flowrl.diag.diagnostic import Diagnostic
from flowrl.diag.span import Span
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
    """One role of a pool."""

    role: str
    layout: Layout
    offloaded: bool = False
    """Whether it leaves the devices while another role of the pool works."""
    recompute: str = "none"
    """Activation checkpointing of a trainer: none, selective or full. The runtime reads it here, not in the graph."""
    micro_batch_tokens: int | None = None
    """Tokens that one device works on at a time, in each of its ops that has micro-batches; None: as its ops say. Set
    where the flow leaves it open; the runtime reads it here. No loss depends on it: each is over a whole minibatch."""
    memory_share: float | None = None
    """Share of a device's memory that an engine may take for weights and KV cache; None: as its role says, else
    machine/engines.py's KV_FRACTION. Set where the flow leaves it open; the runtime reads it here."""


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """A set of devices that its roles share in time. The pool `host` has CPU slots and no devices."""

    name: str
    devices: tuple[str, ...]
    """`node0/0`, …; empty for `host`."""
    device: str
    """Catalogue name of the device type; `host` for the host pool."""
    roles: tuple[RolePlacement, ...]
    slots: int = 1
    """Instructions that may be in flight at once: 1 on devices, several on the host."""


class LedgerLine(msgspec.Struct, frozen=True, kw_only=True):
    """A number that opens up."""

    what: str
    role: str | None
    """Whose it is; None for what is nobody's, such as a reserve."""
    value: float
    unit: str
    """bytes or seconds."""
    formula: str
    """Arithmetic over the names in `inputs` that gives `value`."""
    inputs: dict[str, Any] = {}
    origins: dict[str, str] = {}
    """Where each input came from: `ppo.yaml:12:5`, `default`, `preset grpo`, `card …`, `catalogue …`, `decided D2`."""


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Peak of one phase on each device of a pool. The bytes lines add up to `peak_bytes`."""

    pool: str
    device: str
    """A device, or the first and last of those that do the same: `node0/0 .. node1/7`. On the pool `host` a node."""
    phase: str
    """`load ROLE`, `start ROLE`, an op id, a step of a weights edge (`send_weights A => B`, `wake_weights`,
    `receive_weights`, `wake_cache`); of a host `loading`, `offloaded state`, `saving ROLE`."""
    peak_bytes: int
    limit_bytes: int
    """The device's memory; of `start ROLE` what the engine may take of it."""
    lines: tuple[LedgerLine, ...]


class TimelineSpan(msgspec.Struct, frozen=True, kw_only=True):
    """One instruction of the steady state on the virtual clock."""

    instruction: str
    pool: str
    start_seconds: float
    seconds: float


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What takes the seconds of an instruction: the same for all that are listed, on however many devices."""

    instructions: tuple[str, ...]
    lines: tuple[LedgerLine, ...]
    """In seconds. They add up to the duration of each of `instructions`."""


class EdgeSync(msgspec.Struct, frozen=True, kw_only=True):
    """How the weights of one edge go from shards to shards; its seconds are those of its two instructions."""

    edge: str
    """Its id."""
    transport: str
    """As written, or what it is counted as: shared_memory, cuda_ipc, nccl, object_store, disk."""
    way: str
    """shards: each receiver takes what it lacks of its shards; gather: the trainer gathers whole tensors on each of its
    ranks; broadcast: it gathers them and sends them to every receiver."""
    lines: tuple[LedgerLine, ...]
    """Bytes that the way moves, of all devices together."""
    overlap: tuple[LedgerLine, ...] = ()
    """Bytes by link that shards of both ends have in common: on the receiving device already (local), over the links
    of a node or a link domain, over the network. What `shards` moves; less than the other ways do."""


class RandomStep(msgspec.Struct, frozen=True, kw_only=True):
    """What random lengths and latencies make of the step: so many simulated steps, drawn with a seed."""

    steps: int
    seed: int
    mean_seconds: float
    """No less than the step of the means, `step_seconds`, to within what drawing leaves open."""
    p50_seconds: float
    """Half of the steps take no longer."""
    p90_seconds: float
    p99_seconds: float
    busy: dict[str, float]
    """Share of its time in which each pool works."""
    bubbles: dict[str, float]
    """Seconds of a step in which each pool waits."""
    queues: dict[str, float]
    """Tokens that lie on each channel between pools, in the mean over time: steps of rows, or weight versions."""
    lag: float
    """Published versions between a sample's oldest token and its training, in the mean."""
    stale: float
    """Share of samples that would be older than max_lag when they are trained on: waited for, or dropped."""
    dropped: float
    """Share of samples that are dropped for their age."""


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """What the virtual clock says of the steady state."""

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
    work: tuple[Work, ...] = ()
    """Ledger lines of `durations`, once for instructions that take the same."""
    low_seconds: float = 0.0
    """The shortest that a step is likely to take, by the error that the profile states of itself; 0: not estimated."""
    high_seconds: float = 0.0
    """The longest."""
    random: RandomStep | None = None
    """None where nothing in the step is random, and where more than 16 roles on the host share its slots."""


class Rejected(msgspec.Struct, frozen=True, kw_only=True):
    """An option that was not chosen."""

    option: str
    reason: str
    """Coded: does_not_fit, slower, no_shorter_step, not_preferred, ranks_without_rows."""
    delta: str | None = None
    """What it needs of what there is, or how much longer its step takes."""


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """Something the flow left open, and how it was settled."""

    id: str
    """D1, D2, …"""
    what: str
    """`pools`, `layout of ROLE`, `offload of ROLE`, `recompute of ROLE`, …"""
    chosen: str
    reason: str
    """Coded: asked_for, only_option, fastest, fits, smallest_that_fits, needed_to_fit, nearest_to_fitting, …"""
    text: str
    """One sentence for people."""
    rejected: tuple[Rejected, ...] = ()
    override: str | None = None
    """The key of the flow that overrides it."""


class SearchReport(msgspec.Struct, frozen=True, kw_only=True):
    """How far the search for a placement went."""

    gap: float = 0.0
    """The placement is at most this share above the best of `space`; 0 where it is proven to be the best."""
    bound: float = 0.0
    """No placement of `space` has a smaller value of the objective."""
    looked_at: int = 0
    """Bounds and choices that were worked out."""
    exhaustive: bool = True
    """Whether nothing of `space` was left out."""
    space: str = ""
    """What was searched, in words."""


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    """A condition at a stage's end."""

    metric: str
    at_least: float | None = None
    at_most: float | None = None
    when: str = "end"
    """end, or first: the stage is left as soon as it holds."""
    otherwise: str = "stop"
    """stop or continue."""
    span: Span | None = None
    """Where the flow names the metric."""


class StageRun(msgspec.Struct, frozen=True, kw_only=True):
    """How long a stage runs and what it writes."""

    steps: int
    seed: int = 0
    checkpoint_every_steps: int | None = None
    keep: int | None = None
    """How many checkpoints to keep; None keeps all."""
    loggers: tuple[str, ...] = ("tensorboard",)
    samples_logged: int = 4
    spans: dict[str, Span] = {}
    """Where its keys stand, as far as they are written."""


class StagePlan(msgspec.Struct, frozen=True, kw_only=True):
    """One flow of the plan, from its graph to its instructions."""

    name: str
    graph: Graph
    """After all passes."""
    pools: tuple[Pool, ...]
    edges: tuple[Edge, ...]
    """The lowered edges: from, to, kind, fields, origin (the same values as in `graph.edges`)."""
    programs: Program
    memory: tuple[Memory, ...]
    estimate: Estimate
    decisions: tuple[Decision, ...]
    run: StageRun
    syncs: tuple[EdgeSync, ...] = ()
    """Each weights edge between devices."""
    gate: Gate | None = None
    starts_from: dict[str, str] = {}
    """Model name → `STAGE.ROLE` whose checkpoint it starts from."""
    search: SearchReport = SearchReport()
    """Whether the placement is the best there is."""


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """A file the plan was made from or will read. `digest` is sha256; None if it does not exist at plan time."""

    path: str
    """Relative to the flow's folder."""
    role: str
    """flow, include, data, function or model."""
    digest: str | None = None


class Digests(msgspec.Struct, frozen=True, kw_only=True):
    """sha256 of what the plan depends on."""

    flow: str
    """Of the stages' graphs and runs, and what they ask of placement."""
    cluster: str
    profile: str
    """Of the device and model catalogues."""
    code: str
    """Of FlowRL's version and the files with the user's functions."""
    plan: str = ""
    """Of the rest of the file, so that an edited one is told; empty but in a file."""


class Flags(msgspec.Struct, frozen=True, kw_only=True):
    """What the plan's command was given beside the flow, so that it can be asked again whether the plan is stale."""

    sets: tuple[str, ...] = ()
    """Each `--set`."""
    cluster: str | None = None
    """`--cluster`: a shorthand or a file."""
    profile: str | None = None
    """`--profile`: a file."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The whole file."""

    flowrl_plan: int = PLAN_VERSION
    """Version of this format. It may not be left out."""
    name: str
    """Of the flow."""
    digests: Digests
    verdict: str
    """fits or infeasible."""
    cluster: Cluster
    flags: Flags = Flags()
    folder: str = "."
    """Where relative paths of the flow start, relative to the plan file's folder when written, as given."""
    sources: tuple[Source, ...]
    run: StageRun
    stages: tuple[StagePlan, ...]
    diagnostics: tuple[Diagnostic, ...] = ()
