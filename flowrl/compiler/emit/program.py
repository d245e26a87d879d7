"""Graph and pools → Program: one instruction stream per pool, joined by channels.

Takes a lowered Graph, the plan's pools and the stage's run; gives a Program that `flowrl.program.check` has accepted.
Knows no durations and no memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

from msgspec.structs import replace

from flowrl.compiler.emit.channels import channels_between, join_apart
from flowrl.compiler.emit.instructions import Draft, drafts
from flowrl.compiler.emit.ledger import check_ledger
from flowrl.compiler.emit.order import in_order
from flowrl.compiler.emit.residency import staged_roles, with_residency
from flowrl.compiler.emit.rounds import hold_rounds
from flowrl.compiler.emit.sessions import Parts, most_parts, with_sessions
from flowrl.diag.diagnostic import InternalError
from flowrl.graph.graph import Graph
from flowrl.plan.plan import Memory, Pool, StageRun
from flowrl.program.check import check, is_live
from flowrl.program.program import Channel, ChannelKind, Instruction, Program, Stream


def emit(
    graph: Graph,
    pools: Sequence[Pool],
    run: StageRun,
    memory: Sequence[Memory] = (),
    *,
    fits: bool = True,
    parts: Parts | None = None,
) -> Program:
    """Emit the program of one stage. `memory`: the plan's ledger, which says what engines wake in two parts and covers
    the program at every instant; without it neither is looked at. `fits`: whether the plan holds its limits.
    `parts`: in which generation is handed on; None: all that the graph asks for.

    The order of a stream is its share of one topological order of the whole step, so that streams can never wait for
    each other in a circle. Pools without instructions get no stream. Raises InternalError for a graph that is not
    lowered, that a pass should have refused, or that names a role no pool holds.
    """
    _require_lowered(graph)
    ordered = in_order(drafts(graph, pools, run), graph)
    streams = _streams(ordered, pools, staged_roles(memory))
    channels = channels_between(graph, ordered)
    channels = (*channels, *hold_rounds(graph, streams, channels))
    program = _in_parts(graph, streams, (*channels, *join_apart(streams, channels)), parts or most_parts(graph))
    check(program)
    if memory:
        check_ledger(program, graph, pools, memory, fits=fits)
    return program


def _in_parts(graph: Graph, streams: Sequence[Stream], channels: Sequence[Channel], parts: Parts) -> Program:
    """The program with its sessions. Parts that go in turn through the ops of a lane may wait for what stands behind
    them; then each op does all of its parts before the next."""
    program = _joined(*with_sessions(graph, streams, channels, parts))
    return program if is_live(program) else _joined(*with_sessions(graph, streams, channels, parts, in_turn=False))


def _require_lowered(graph: Graph) -> None:
    if not graph.edges and graph.declared:
        raise InternalError(f"graph `{graph.name}` has no lowered edges")


def _streams(ordered: Sequence[Draft], pools: Sequence[Pool], staged: Collection[str]) -> tuple[Stream, ...]:
    """One stream per pool that has work, in the order of the pools."""
    streams: list[Stream] = []
    for pool in pools:
        own = tuple(draft.instruction for draft in ordered if draft.instruction.pool == pool.name)
        if own:
            streams.append(Stream(pool=pool.name, instructions=with_residency(own, pool, staged), slots=pool.slots))
    return tuple(streams)


def _joined(streams: tuple[Stream, ...], channels: tuple[Channel, ...]) -> Program:
    """The program, each instruction naming the channels it receives tokens from and sends tokens to."""
    into: dict[str, list[str]] = defaultdict(list)
    out: dict[str, list[str]] = defaultdict(list)
    for channel in channels:
        if channel.kind is not ChannelKind.INTERACTION:
            into[channel.target].append(channel.id)
            out[channel.source].append(channel.id)

    def wired(instruction: Instruction) -> Instruction:
        return replace(instruction, receives=tuple(into[instruction.id]), sends=tuple(out[instruction.id]))

    return Program(
        streams=tuple(replace(stream, instructions=tuple(map(wired, stream.instructions))) for stream in streams),
        channels=channels,
    )
