"""FlowSpec → Plan: lower, passes, placement, program, estimate, for each stage. Reads like a table of contents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath

from msgspec.structs import replace

from flowrl.api.data import data_faults
from flowrl.api.digests import code_digest, flow_digest, profile_digest
from flowrl.api.machine import cluster_of
from flowrl.api.parts import emit_stage, step_in_parts
from flowrl.api.profile import load_profile
from flowrl.api.sources import sources_of
from flowrl.compiler.lower.effects import warn_effects
from flowrl.compiler.lower.gates import removed_metric
from flowrl.compiler.lower.graph import lower_stage
from flowrl.compiler.lower.placement import lower_placement
from flowrl.compiler.lower.run import lower_gate, lower_run, lower_stage_run
from flowrl.compiler.lower.stage import Stage
from flowrl.compiler.passes.pipeline import run_passes
from flowrl.diag.diagnostic import Diagnostic, FlowError
from flowrl.execution.estimate import estimate
from flowrl.graph.graph import Graph
from flowrl.graph.params import GenerateParams
from flowrl.machine.cluster import Cluster
from flowrl.machine.profile import PROFILE, Profile
from flowrl.machine.shape import ModelShape
from flowrl.placement.cost.price import price_lines
from flowrl.placement.cost.workload import Workload
from flowrl.placement.place import place
from flowrl.placement.request import Placement, PlacementRequest
from flowrl.placement.shapes import handed_on, shapes_of
from flowrl.placement.sync.stage import edge_syncs
from flowrl.placement.time.draws import draws_of
from flowrl.placement.time.instructions import duration_lines, seconds_of, work_of
from flowrl.placement.time.interval import interval_lines
from flowrl.plan.digests import digest
from flowrl.plan.plan import Digests, Flags, Plan, StagePlan, StageRun
from flowrl.program.program import Program
from flowrl.spec import load
from flowrl.spec.flow import FlowSpec
from flowrl.spec.sources import with_sources


@dataclass(frozen=True, slots=True)
class Checked:
    """What `check` found: every stage's graph that could be made, and all diagnostics."""

    graphs: tuple[Graph, ...]
    diagnostics: tuple[Diagnostic, ...]


def check_spec(spec: FlowSpec) -> Checked:
    """Lower every stage and run the passes; the faults of one stage do not hide those of the next."""
    graphs: list[Graph] = []
    found: list[Diagnostic] = []
    for index in range(len(spec.stages)):
        stage = Stage(spec, index)
        try:
            graph, warnings = run_passes(lower_stage(spec, index))
        except FlowError as error:
            found.extend(stage.with_data(error.diagnostics))
            continue
        found.extend((*warnings, *warn_effects(stage)))
        gate = removed_metric(stage, graph)
        faults = (*data_faults(stage, graph), *(() if gate is None else (gate,)))
        found.extend(faults)
        if not faults:
            graphs.append(graph)
    return Checked(tuple(graphs), _once(found, spec))


def check_as_planned(spec: FlowSpec, cluster: str | None = None) -> Checked:
    """`check_spec` and, if every stage has a graph, what a plan would tell besides: whether it fits. Which placement is
    the best, how long its step takes and which warnings it alone has are left to the plan."""
    checked = check_spec(spec)
    if len(checked.graphs) < len(spec.stages):
        return checked
    _, placed = placed_stages(spec, checked, cluster, any_that_fits=True)
    told = [diagnostic for each in placed for diagnostic in each.placement.diagnostics]
    return Checked(checked.graphs, _once([*checked.diagnostics, *told], spec))


def compile_spec(
    spec: FlowSpec,
    cluster: str | Cluster | None = None,
    *,
    profile: Profile | None = None,
    objective: str | None = None,
    flags: Flags | None = None,
) -> Plan:
    """The plan of a flow on `cluster` (a shorthand, a file, a value, or None for what the flow says), with the rates of
    `profile` (None: those that FlowRL brings), placed for `objective` (None: what the flow says). `flags`: those of the
    command, which the plan keeps.

    Raises FlowError with every fault of the flow. A flow that does not fit gives a plan whose verdict is infeasible.
    """
    checked = check_spec(spec)
    if len(checked.graphs) < len(spec.stages):
        raise FlowError(checked.diagnostics)
    machine, placed = placed_stages(spec, checked, cluster, profile, objective)
    stages = [compile_stage(spec, index, each, machine) for index, each in enumerate(placed)]
    told = [diagnostic for each in placed for diagnostic in each.placement.diagnostics]
    diagnostics = _once([*checked.diagnostics, *told], spec)
    sources = sources_of(spec, checked.graphs)
    digests = Digests(
        flow=flow_digest(spec, checked.graphs),
        cluster=digest(machine),
        profile=profile_digest(profile),
        code=code_digest(sources),
    )
    return Plan(
        name=spec.document.name,
        digests=digests,
        verdict="infeasible" if any(d.exit_code == 4 for d in diagnostics) else "fits",
        cluster=machine,
        flags=flags or Flags(cluster=cluster.name if isinstance(cluster, Cluster) else cluster),
        folder=spec.folder,
        sources=sources,
        run=lower_run(spec.document.run),
        stages=tuple(stages),
        diagnostics=diagnostics,
    )


def plan_file(
    file: str | FilePath, sets: Sequence[str] = (), cluster: str | None = None, profile: str | FilePath | None = None
) -> Plan:
    """The plan of a flow file with the flags of a command. Raises FlowError as `compile_spec` does, and for a file that
    cannot be read."""
    flags = Flags(sets=tuple(sets), cluster=cluster, profile=None if profile is None else str(profile))
    rates = None if profile is None else load_profile(profile)
    return compile_spec(load(file, sets), cluster, profile=rates, flags=flags)


@dataclass(frozen=True, slots=True)
class Placed:
    """A stage with its place and its program, not yet timed."""

    graph: Graph
    shapes: Mapping[str, ModelShape]
    request: PlacementRequest
    placement: Placement
    run: StageRun
    program: Program


def placed_stages(
    spec: FlowSpec,
    checked: Checked,
    cluster: str | Cluster | None,
    profile: Profile | None = None,
    objective: str | None = None,
    *,
    any_that_fits: bool = False,
) -> tuple[Cluster, list[Placed]]:
    """The machine, and every stage placed on it: as well as can be, or so that it fits."""
    try:
        machine = cluster_of(spec, cluster)
        return machine, _place(spec, checked, machine, profile or PROFILE, objective, any_that_fits=any_that_fits)
    except FlowError as error:
        raise FlowError(with_sources(spec, error.diagnostics)) from None


def _place(
    spec: FlowSpec,
    checked: Checked,
    cluster: Cluster,
    profile: Profile,
    objective: str | None,
    *,
    any_that_fits: bool,
) -> list[Placed]:
    """Every stage in turn: models of later ones may be what earlier ones hand on."""
    placed: list[Placed] = []
    earlier: dict[str, ModelShape] = {}
    for index, graph in enumerate(checked.graphs):
        shapes = shapes_of(graph, spec.folder, earlier)
        earlier |= handed_on(spec.stages[index].name, graph, shapes)
        request = replace(lower_placement(spec, index), profile=profile)
        request = request if objective is None else replace(request, objective=objective, objective_span=None)
        run = lower_stage_run(spec, index)
        in_parts = step_in_parts(graph, run, shapes, request, cluster)
        placement = place(graph, cluster, request, shapes, in_parts, any_that_fits=any_that_fits)
        program, placement = emit_stage(graph, placement, run, shapes, request, cluster)
        placed.append(Placed(graph, shapes, request, placement, run, program))
    return placed


def compile_stage(spec: FlowSpec, index: int, placed: Placed, cluster: Cluster) -> StagePlan:
    graph, shapes, request, placement = placed.graph, placed.shapes, placed.request, placed.placement
    lines = duration_lines(
        graph, placement.pools, placed.program, shapes, cluster, request=request, decisions=placement.decisions
    )
    tokens = _response_tokens(graph, shapes, request)
    draws = draws_of(
        graph, placement.pools, placed.program, shapes, cluster, lines, request=request, decisions=placement.decisions
    )
    expected = estimate(placed.program, seconds_of(lines), graph, tokens, placed.run.steps, draws)
    prices = price_lines(placement.pools, cluster, expected.step_seconds)
    low, high = interval_lines(expected.step_seconds, request.profile)
    return StagePlan(
        name=spec.stages[index].name,
        graph=graph,
        pools=placement.pools,
        edges=graph.edges,
        programs=placed.program,
        memory=placement.memory,
        estimate=replace(
            expected,
            lines=(*expected.lines, low, high, *prices),
            low_seconds=low.value,
            high_seconds=high.value,
            work=work_of(placed.program, lines),
        ),
        decisions=placement.decisions,
        search=placement.search,
        run=placed.run,
        syncs=edge_syncs(graph, placement.pools, shapes, cluster, request, placement.decisions),
        gate=lower_gate(spec, index),
        starts_from=_starts_from(graph),
    )


def _response_tokens(
    graph: Graph, shapes: Mapping[str, ModelShape], request: PlacementRequest
) -> tuple[float, str] | None:
    """Mean tokens of a rollout's response (actions: of a denoiser its steps) and where the figure comes from: the mean
    that the times are made from."""
    work = Workload(graph, shapes, request)
    rollouts = (op for op in graph.ops if isinstance(op.params, GenerateParams) and op.label is None)
    means = [work.passes(op) or work.lengths(op).response_mean for op in rollouts]
    return max(((mean.value, mean.origin) for mean in means), default=None)


def _starts_from(graph: Graph) -> dict[str, str]:
    prefix = "stages."
    return {m.name: m.source.removeprefix(prefix) for m in graph.models if m.source.startswith(prefix)}


def _once(diagnostics: list[Diagnostic], spec: FlowSpec) -> tuple[Diagnostic, ...]:
    """Each diagnostic once (stages share inherited sections), without the warnings that the flow allows."""
    allowed = set(spec.document.allow)
    kept = [d for d in diagnostics if d.severity == "error" or d.code not in allowed]
    return tuple(dict.fromkeys(with_sources(spec, kept)))
