"""Modelled seconds of every instruction of a program: what the virtual clock runs on.

A first approximation: operations, bytes and published peaks times assumed shares (rates.py). Each figure has ledger
lines that add up to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

from msgspec.structs import replace

from flowrl.diag.diagnostic import InternalError
from flowrl.graph.graph import Graph, Op
from flowrl.graph.params import DataParams, UpdateParams
from flowrl.graph.rows import rows_of
from flowrl.machine.cluster import Cluster
from flowrl.machine.shape import ModelShape
from flowrl.placement.cost.ledger import evaluate
from flowrl.placement.cost.placed import Placed, placed_roles
from flowrl.placement.cost.workload import Workload
from flowrl.placement.request import PlacementRequest
from flowrl.placement.sync.edge import sync_of
from flowrl.placement.time.ops import Lines, OpTime
from flowrl.placement.time.takes import opened_lines, scaled, take_shares, taken_lines, token_shares
from flowrl.plan.plan import Decision, LedgerLine, Pool, Work
from flowrl.program.program import SESSION, Instruction, InstructionKind, Program
from flowrl.program.sessions import by_prompt


def durations(
    graph: Graph,
    pools: Sequence[Pool],
    program: Program,
    shapes: Mapping[str, ModelShape],
    cluster: Cluster,
    *,
    request: PlacementRequest | None = None,
    decisions: Sequence[Decision] = (),
) -> dict[str, float]:
    """Seconds by instruction id, of a firing that works (an idle one takes none)."""
    by_id = duration_lines(graph, pools, program, shapes, cluster, request=request, decisions=decisions)
    return seconds_of(by_id)


def seconds_of(lines: Mapping[str, Sequence[LedgerLine]]) -> dict[str, float]:
    """Seconds by instruction id of what `duration_lines` gives."""
    return {id: sum((line.value for line in each), 0.0) for id, each in lines.items()}


def work_of(program: Program, lines: Mapping[str, tuple[LedgerLine, ...]]) -> tuple[Work, ...]:
    """The lines once for all instructions that do the same, without those that take no time."""
    groups: dict[tuple[str, ...], list[tuple[tuple[LedgerLine, ...], list[str]]]] = {}
    for instruction in program.instructions:
        own = lines[instruction.id]
        if own:
            alike = groups.setdefault(_same(instruction)[:-1], [])
            ids = next((ids for other, ids in alike if other == own), None)
            if ids is None:
                alike.append((own, [instruction.id]))
            else:
                ids.append(instruction.id)
    return tuple(Work(instructions=tuple(ids), lines=own) for alike in groups.values() for own, ids in alike)


def _same(instruction: Instruction) -> tuple[str, ...]:
    """Equal for instructions that take the same time. Parts differ: the last of a call's rows are few and long. Fixed
    minibatches do not: they are prompts in the order of the data."""
    part = str(instruction.rows.start) if _is_part(instruction) else ""
    return (instruction.kind, instruction.role, instruction.op or "", instruction.edge or "", part)


def _is_part(instruction: Instruction) -> bool:
    """Whether its rows are those that are done next."""
    if instruction.kind is InstructionKind.TAKE or instruction.rows.arrived:
        return True
    is_update = (instruction.op or "").split("@")[0].endswith(".update")
    return instruction.kind is InstructionKind.RUN and instruction.firings > 1 and not is_update


def duration_lines(
    graph: Graph,
    pools: Sequence[Pool],
    program: Program,
    shapes: Mapping[str, ModelShape],
    cluster: Cluster,
    *,
    request: PlacementRequest | None = None,
    decisions: Sequence[Decision] = (),
) -> dict[str, tuple[LedgerLine, ...]]:
    """The ledger lines, in seconds, that `durations` adds up, by instruction id."""
    request = request or PlacementRequest()
    times = OpTime(Workload(graph, shapes, request), pools, cluster)
    placed = {
        each.role.name: each
        for pool in pools
        if pool.devices
        for each in placed_roles(graph, pool, shapes, cluster, request, decisions)
    }
    found: dict[str, tuple[LedgerLine, ...]] = {}
    cache: dict[tuple[str, ...], Lines] = {}
    of_parts: dict[int, OpTime] = {1: times}
    for instruction in chain.from_iterable(stream.instructions for stream in program.streams):
        key = _same(instruction)
        if key not in cache:
            parts = _parts(instruction, graph)
            if parts not in of_parts:
                of_parts[parts] = OpTime(Workload(_part_of(graph, parts), shapes, request), pools, cluster)
            share = _share(instruction, program, times, placed.get(instruction.role))
            whole = _lines(instruction, graph, of_parts[parts], placed, share)
            cache[key] = _by_tokens(instruction, program, times, placed, whole)
        found[instruction.id] = tuple(cache[key])
    return found


def _parts(instruction: Instruction, graph: Graph) -> int:
    """In how many parts the op of a run is done, one of which this is; the minibatches of an update are no parts."""
    if instruction.kind is not InstructionKind.RUN or instruction.op is None:
        return 1
    return 1 if isinstance(graph.op(instruction.op).params, UpdateParams) else instruction.firings


def _part_of(graph: Graph, parts: int) -> Graph:
    """A step with the prompts of one part."""
    prompts = graph.step.prompts

    def fewer(op: Op) -> Op:
        if not isinstance(op.params, DataParams) or op.params.prompts != prompts:
            return op
        return replace(op, params=replace(op.params, prompts=prompts // parts))

    return replace(graph, ops=tuple(map(fewer, graph.ops)), step=replace(graph.step, prompts=prompts // parts))


def _lines(instruction: Instruction, graph: Graph, times: OpTime, placed: Mapping[str, Placed], share: float) -> Lines:
    here = placed.get(instruction.role)
    if instruction.kind in (InstructionKind.RUN, InstructionKind.OPEN, InstructionKind.TAKE):
        if instruction.op is None:
            raise InternalError(f"`{instruction.id}` names no op")
        op = times.work.graph.op(instruction.op)
        if times.work.interaction(op):
            whole = times.together(op, placed)
        else:
            whole = times.on_devices(here, op) if here is not None else times.host(op)
        if instruction.kind is InstructionKind.RUN:
            return whole
        if instruction.kind is InstructionKind.OPEN:
            return opened_lines(whole)
        return taken_lines(whole, share, f"share of take {instruction.firing + 1} of {instruction.firings}")
    if here is None or here.shape is None or instruction.kind in SESSION:
        return []
    match instruction.kind:
        case InstructionKind.SEND_WEIGHTS | InstructionKind.RECEIVE_WEIGHTS:
            return _sync_lines(instruction, graph, placed)
        case InstructionKind.SAVE:
            return times.save(here)
        case InstructionKind.WAKE_WEIGHTS | InstructionKind.WAKE_CACHE:
            return _half_awake(instruction.kind, times.move_state(here))
        case _:
            return times.move_state(here)


def _share(instruction: Instruction, program: Program, times: OpTime, here: Placed | None) -> float:
    """Of a take: the part of its call's seconds that it adds. All parts of a session take as long as the whole call."""
    if instruction.kind is not InstructionKind.TAKE or here is None or here.shape is None or instruction.op is None:
        return 1.0 / instruction.firings
    op = times.work.graph.op(instruction.op)
    whole_prompts = by_prompt(times.work.graph, program.instructions, op.id)
    return take_shares(times, here, op, instruction.firings, by_prompt=whole_prompts)[instruction.firing]


def _by_tokens(
    instruction: Instruction, program: Program, times: OpTime, placed: Mapping[str, Placed], whole: Lines
) -> Lines:
    """What a part takes on devices goes with its tokens. The rows of a part are those that are done next, so the first
    have few."""
    if instruction.kind is not InstructionKind.RUN or not _is_part(instruction) or instruction.role not in placed:
        return whole
    graph, rows = times.work.graph, instruction.rows
    makes = {i.op for i in program.instructions if i.kind is InstructionKind.TAKE}
    made = next((id for id in sorted(rows_of(graph).space(graph.op(instruction.op or ""))) if id in makes), None)
    here = None if made is None else placed.get(graph.op(made).role)
    if made is None or here is None or here.shape is None:
        return whole
    same = [i.rows.start for i in program.instructions if i.op == instruction.op and i.kind is InstructionKind.RUN]
    starts = sorted(set(same))
    groups = by_prompt(graph, program.instructions, made)
    share = token_shares(times, here, graph.op(made), len(starts), by_prompt=groups)[starts.index(rows.start)]
    origin = f"tokens of part {starts.index(rows.start) + 1} of {len(starts)}, as they are done, over the mean"
    return whole if share == 1.0 else scaled(whole, "part", share, origin)


def _half_awake(kind: InstructionKind, whole: Lines) -> Lines:
    """A wake-up in two calls: the state comes with the weights, what is fixed is shared between both (assumed), so that
    together they take as long as one."""
    first = kind is InstructionKind.WAKE_WEIGHTS
    what, formula, used = ("weights woken", "s/h + y/2", "shy") if first else ("cache woken", "y/2", "y")
    return [
        replace(
            entry,
            what=what,
            value=evaluate(formula, entry.inputs),
            formula=formula,
            inputs={name: entry.inputs[name] for name in used},
            origins={name: entry.origins[name] for name in used},
        )
        for entry in whole
    ]


def _sync_lines(instruction: Instruction, graph: Graph, placed: Mapping[str, Placed]) -> Lines:
    """What one end of a weights edge takes."""
    edge = next(each for each in graph.edges if each.id == instruction.edge)
    source, target = (placed.get(end.split(".")[0]) for end in (edge.source, edge.target))
    if source is None or target is None or source.shape is None:
        return []
    sync = sync_of(source, target, edge.transport)
    return list(sync.receive if instruction.kind is InstructionKind.RECEIVE_WEIGHTS else sync.send)
