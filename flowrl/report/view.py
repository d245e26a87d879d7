"""What the drawn views show of a plan: the values of the plan, arranged by what stands where on the page.

A View holds numbers as the plan has them and the words that people read; it draws nothing and is the same for the page
of a browser, for a notebook and for tests. Its ids are those of the plan, so that all parts of a page can point at one
thing: ops, roles, pools, instructions, decisions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from flowrl.diag.diagnostic import Diagnostic
from flowrl.explain.ran import Ran, RanRow, RanStage
from flowrl.graph.graph import Graph
from flowrl.machine.cluster import Cluster
from flowrl.placement.devices import device_names
from flowrl.plan.plan import Decision, LedgerLine, Memory, Plan, Pool, StagePlan
from flowrl.program.program import SESSION, Instruction, InstructionKind
from flowrl.report.arrows import GraphView, graph_view
from flowrl.report.fits import fullness
from flowrl.report.numbers import gib, rate, seconds
from flowrl.report.when import bound_by, times
from flowrl.report.where import layout


class SourceText(msgspec.Struct, frozen=True):
    """A file that the flow was read from, as it is now."""

    path: str
    """As the places of the plan name it."""
    text: str


class Place(msgspec.Struct, frozen=True):
    """Where something is written."""

    file: str
    line: int
    end_line: int


class Bar(msgspec.Struct, frozen=True):
    """An instruction of the steady state."""

    id: str
    role: str
    target: str
    """What it points at: its op, or its role."""
    kind: str
    """work, move or weights."""
    text: str
    start: float
    seconds: float
    measured: float | None = None
    """Seconds that a run took for it, in the median."""
    measured_start: float | None = None
    critical: bool = False
    work: tuple[LedgerLine, ...] = ()


class Phase(msgspec.Struct, frozen=True):
    """The memory of one phase on one group of devices."""

    device: str
    phase: str
    peak_bytes: int
    limit_bytes: int
    lines: tuple[LedgerLine, ...]
    spans: tuple[tuple[float, float], ...]
    """When it goes on in a step: start and length in seconds. Empty for what comes before the first step."""


class Living(msgspec.Struct, frozen=True):
    """A role on its pool."""

    role: str
    kind: str
    backend: str
    layout: str
    notes: tuple[str, ...]


class PoolView(msgspec.Struct, frozen=True):
    name: str
    device: str
    devices: tuple[str, ...]
    busy: float
    roles: tuple[Living, ...]
    bars: tuple[Bar, ...]
    phases: tuple[Phase, ...]


class Row(msgspec.Struct, frozen=True):
    """An instruction that a run carried out, also one that no steady step has."""

    id: str
    role: str
    target: str
    """What it points at: its op, or its role."""
    seconds: float
    measured: float


class StageView(msgspec.Struct, frozen=True):
    name: str
    step_seconds: float
    measured_seconds: float | None
    figures: tuple[tuple[str, str], ...]
    """What is said first: name and value."""
    measured_figures: tuple[tuple[str, str], ...]
    """The same as a run had it, with a word at what it did not measure; none without a run."""
    rows: tuple[Row, ...]
    """The largest difference first; none without a run."""
    bound: str
    """What the step waits for."""
    graphs: tuple[GraphView, ...]
    """As lowered, and after each pass; the last is the plan's."""
    pools: tuple[PoolView, ...]
    decisions: tuple[Decision, ...]
    places: Mapping[str, Place]
    """Ids → where they are written."""


class Message(msgspec.Struct, frozen=True):
    code: str
    severity: str
    text: str
    helps: tuple[str, ...]
    place: Place | None


class View(msgspec.Struct, frozen=True):
    """The whole page."""

    name: str
    digest: str
    verdict: str
    cluster: str
    nodes: tuple[tuple[str, tuple[str, ...]], ...]
    """Each node of the cluster with its devices."""
    stages: tuple[StageView, ...]
    messages: tuple[Message, ...]
    sources: tuple[SourceText, ...]
    curves: Mapping[str, tuple[tuple[float, float], ...]] = {}
    """After a run: metric → (step, value)."""


Passes = Mapping[str, Sequence[tuple[str, Graph]]]
"""Stage → the name of each pass with the graph after it."""


def plan_view(
    plan: Plan,
    passes: Passes | None = None,
    sources: Sequence[SourceText] = (),
    measured: Ran | None = None,
) -> View:
    """The view of a plan. `passes`: what the slider goes through, by stage; without it only the plan's own graph.
    `measured`: a run of it."""
    runs = {} if measured is None else {stage.name: stage for stage in measured.stages}
    nodes = tuple(
        (names[0].rpartition("/")[0], tuple(names))
        for group in plan.cluster.groups
        for names in device_names(plan.cluster, group)
        if names
    )
    return View(
        name=plan.name,
        digest=plan.digests.flow[:8],
        verdict=plan.verdict,
        cluster=machine(plan.cluster),
        nodes=nodes,
        stages=tuple(_stage(stage, (passes or {}).get(stage.name, ()), runs.get(stage.name)) for stage in plan.stages),
        messages=tuple(map(_message, plan.diagnostics)),
        sources=tuple(sources),
        curves={} if measured is None else measured.curves,
    )


def machine(cluster: Cluster) -> str:
    """`2 nodes of 8 × H100-80G`."""
    return ", ".join(
        f"{group.nodes:,} node{'' if group.nodes == 1 else 's'} of {group.devices_per_node:,} × {group.device.name}"
        for group in cluster.groups
    )


def _stage(stage: StagePlan, passes: Sequence[tuple[str, Graph]], measured: RanStage | None) -> StageView:
    named = [*passes[:-1], (passes[-1][0] if passes else "as planned", stage.graph)]
    pool_of = {entry.role: pool.name for pool in stage.pools for entry in pool.roles}
    taken = _taken(stage)
    rows = {} if measured is None else {row.instruction: row for row in measured.rows}
    return StageView(
        name=stage.name,
        step_seconds=stage.estimate.step_seconds,
        measured_seconds=None if measured is None else measured.measured_step_seconds,
        figures=tuple(_figures(stage)),
        measured_figures=() if measured is None else tuple(_measured_figures(stage, measured)),
        rows=() if measured is None else tuple(_rows(stage, measured)),
        bound=bound_by(stage),
        graphs=tuple(graph_view(name, graph, pool_of, taken) for name, graph in named),
        pools=tuple(_pool(stage, pool, rows) for pool in stage.pools),
        decisions=stage.decisions,
        places=dict(_places(stage.graph)),
    )


def _figures(stage: StagePlan) -> Iterator[tuple[str, str]]:
    """Step, run, throughput, the tightest device, what the step waits for."""
    estimate = stage.estimate
    likely = f" ({seconds(estimate.low_seconds)} to {seconds(estimate.high_seconds)})" if estimate.high_seconds else ""
    yield "step", f"≈ {seconds(estimate.step_seconds)}{likely}"
    if estimate.random is not None:
        yield "99 of 100 steps within", seconds(estimate.random.p99_seconds)
    yield from (("run", f"≈ {seconds(line.value)}") for line in estimate.lines if line.what == "run")
    if estimate.tokens_per_second > 0:
        yield "tokens/s", rate(estimate.tokens_per_second)
    yield "samples/s", rate(estimate.samples_per_second)
    yield from ((line.what, f"{line.value:,.2f}") for line in estimate.lines if line.what.startswith("price per"))
    tightest = max(stage.memory, key=fullness, default=None)
    if tightest is not None:
        yield "tightest", f"{gib(tightest.peak_bytes)} of {gib(tightest.limit_bytes)} GiB in {tightest.phase}"
    if bound := bound_by(stage):
        yield "waits for", bound.removeprefix("bound by ")


def _measured_figures(stage: StagePlan, measured: RanStage) -> Iterator[tuple[str, str]]:
    """Each figure of the plan: measured, or said to be estimated. A step of a run has as many samples as planned."""
    estimate, step = stage.estimate, measured.measured_step_seconds
    if not step:
        yield from _figures(stage)
        return
    for name, value in _figures(stage):
        if name == "step":
            yield name, f"{seconds(step)} in the median; estimated {value}"
        elif name == "samples/s":
            yield name, rate(estimate.samples_per_second * estimate.step_seconds / step)
        else:
            yield name, f"{value} (estimated)"


def _rows(stage: StagePlan, measured: RanStage) -> Iterator[Row]:
    instructions = {i.id: i for i in stage.programs.instructions}
    for row in measured.rows:
        instruction = instructions[row.instruction]
        target = instruction.op or instruction.role
        yield Row(row.instruction, instruction.role, target, row.estimated_seconds, row.measured_seconds)


def _pool(stage: StagePlan, pool: Pool, measured: Mapping[str, RanRow]) -> PoolView:
    bars = tuple(_bars(stage, pool.name, measured))
    kinds = {role.name: role for role in stage.graph.roles}
    return PoolView(
        name=pool.name,
        device=pool.device,
        devices=pool.devices,
        busy=stage.estimate.busy.get(pool.name, 0.0),
        roles=tuple(
            Living(
                entry.role,
                kinds[entry.role].kind.value,
                kinds[entry.role].backend or "",
                layout(entry.layout) if pool.devices else "",
                tuple(_notes(entry.offloaded, entry.recompute, entry.micro_batch_tokens)),
            )
            for entry in pool.roles
        ),
        bars=bars,
        phases=tuple(_phase(memory, stage, bars) for memory in stage.memory if memory.pool == pool.name),
    )


def _notes(offloaded: bool, recompute: str, micro_batch_tokens: int | None) -> Iterator[str]:
    if offloaded:
        yield "offloaded when idle"
    if recompute != "none":
        yield f"recomputes activations ({recompute})"
    if micro_batch_tokens is not None:
        yield f"{micro_batch_tokens:,} tokens at a time"


def _bars(stage: StagePlan, pool: str, measured: Mapping[str, RanRow]) -> Iterator[Bar]:
    instructions = {i.id: i for i in stage.programs.instructions}
    critical = set(stage.estimate.critical)
    work = {id: each.lines for each in stage.estimate.work for id in each.instructions}
    for span in stage.estimate.timeline:
        instruction = instructions[span.instruction]
        row = measured.get(instruction.id)
        if instruction.pool == pool:
            yield Bar(
                id=instruction.id,
                role=instruction.role,
                target=instruction.op or instruction.role,
                kind=_kind(instruction),
                text=instruction.id,
                start=span.start_seconds,
                seconds=span.seconds,
                measured=None if row is None else row.measured_seconds,
                measured_start=None if row is None else row.start_seconds,
                critical=instruction.id in critical,
                work=work.get(instruction.id, ()),
            )


def _kind(instruction: Instruction) -> str:
    if instruction.kind is InstructionKind.RUN or instruction.kind in SESSION:
        return "work"
    weights = (InstructionKind.SEND_WEIGHTS, InstructionKind.RECEIVE_WEIGHTS)
    return "weights" if instruction.kind in weights else "move"


def _phase(memory: Memory, stage: StagePlan, bars: Sequence[Bar]) -> Phase:
    instructions = {i.id: i for i in stage.programs.instructions}
    spans = tuple((bar.start, bar.seconds) for bar in bars if _is_phase_of(memory.phase, instructions[bar.id]))
    return Phase(memory.device, memory.phase, memory.peak_bytes, memory.limit_bytes, memory.lines, spans)


def _is_phase_of(phase: str, instruction: Instruction) -> bool:
    """An op's phase has the op's id; a step of a weights edge has the instruction's kind in front of the edge, or of
    the wake-up of the role that the edge reaches."""
    if instruction.op is not None:
        return phase == instruction.op
    kind, _, edge = phase.partition(" ")
    if kind != instruction.kind.value:
        return False
    return edge in (instruction.edge, instruction.role) or edge.endswith(f"=> {instruction.role}")


def _taken(stage: StagePlan) -> dict[str, str]:
    """Op → what each of its instructions takes in a step: `4 × 9.50 s`, `8 × 1.20 s to 3.40 s`."""
    ops = {each.id: each.op for each in stage.programs.instructions}
    found: dict[str, list[float]] = {}
    for span in stage.estimate.timeline:
        op = ops[span.instruction]
        if op is not None and span.seconds > 0:
            found.setdefault(op, []).append(span.seconds)
    return {op: times(each) for op, each in found.items()}


def _places(graph: Graph) -> Iterator[tuple[str, Place]]:
    for role in graph.roles:
        if role.span is not None:
            yield role.name, Place(role.span.file, role.span.line, role.span.end_line)
    for op in graph.ops:
        if op.span is not None:
            yield op.id, Place(op.span.file, op.span.line, op.span.end_line)
    for edge in graph.declared:
        if edge.span is not None:
            yield edge.id, Place(edge.span.file, edge.span.line, edge.span.end_line)


def _message(diagnostic: Diagnostic) -> Message:
    span = diagnostic.labels[0].span if diagnostic.labels else None
    place = None if span is None else Place(span.file, span.line, span.end_line)
    said = diagnostic.labels[0].text if diagnostic.labels else ""
    # A browser shows marks of code as they are.
    told = [part.replace("`", "") for part in (diagnostic.headline, said, diagnostic.why) if part]
    helps = tuple(help.text.replace("`", "") for help in diagnostic.helps)
    return Message(diagnostic.code, diagnostic.severity.value, ": ".join(told), helps, place)
