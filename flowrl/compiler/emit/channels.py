"""Channels: one per lowered edge and pair of instructions, and what keeps unrelated pools together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import networkx as nx
from msgspec.structs import replace

from flowrl.compiler.emit.instructions import Draft, by_op
from flowrl.graph.graph import Edge, EdgeKind, Graph
from flowrl.graph.rates import READ_AND_MADE, steps_ahead
from flowrl.program.program import Channel, ChannelKind, Instruction, InstructionKind, Stream

_SEND, _RECEIVE = InstructionKind.SEND_WEIGHTS, InstructionKind.RECEIVE_WEIGHTS


def channels_between(graph: Graph, ordered: Sequence[Draft]) -> tuple[Channel, ...]:
    """The channels that carry out the graph's edges, in their order, with unique ids."""
    found: list[Channel] = []
    instructions = by_op(ordered)
    weights = (other for other in graph.edges if other.kind is EdgeKind.WEIGHTS)
    room = READ_AND_MADE + max((steps_ahead(graph, other) for other in weights), default=0)
    for edge in graph.edges:
        if edge.kind is EdgeKind.WEIGHTS:
            found.extend(_weights(edge, ordered))
            continue
        sources, targets = instructions[edge.source], instructions[edge.target]
        if edge.kind is EdgeKind.DATA:
            found.extend(_data(edge, sources, targets, room))
        elif edge.kind is EdgeKind.STATE:
            found.append(_state(edge, sources, targets))
        elif edge.kind is EdgeKind.INTERACTION:
            found.append(_interaction(edge, sources, targets))
    return _unique(found)


def join_apart(streams: Sequence[Stream], channels: Sequence[Channel]) -> tuple[Channel, ...]:
    """Order channels between lanes that no channel ties together, so that none runs ahead without bound."""
    lanes = [lane for stream in streams for lane in stream.lanes]
    lane_of = {instruction.id: place for place, lane in enumerate(lanes) for instruction in lane}
    tied: nx.Graph[int] = nx.Graph()
    tied.add_nodes_from(range(len(lanes)))
    tied.add_edges_from((lane_of[channel.source], lane_of[channel.target]) for channel in channels)
    ends = [lanes[min(part)][-1].id for part in nx.connected_components(tied)]
    return tuple(
        Channel(
            id=f"order {ends[0]} -> {other}",
            kind=ChannelKind.ORDER,
            source=ends[0],
            target=other,
            capacity=READ_AND_MADE,
        )
        for other in ends[1:]
    )


def _weights(edge: Edge, ordered: Sequence[Draft]) -> list[Channel]:
    """One channel for each version a step. They hold the edge's tokens dealt out in turn, so that the receiver, which
    takes one from each, takes the versions in their order; room for one more each, so that publishing never waits for
    the receiver's step."""
    sends = [d.instruction for d in ordered if d.instruction.edge == edge.id and d.instruction.kind is _SEND]
    (receive,) = (d.instruction for d in ordered if d.instruction.edge == edge.id and d.instruction.kind is _RECEIVE)
    count = len(sends)
    found: list[Channel] = []
    for send in sends:
        place = (edge.tokens - count + send.firing) % count
        tokens = max(0, -(-(edge.tokens - place) // count))  # a lag may be too long for the length of a range
        name = edge.id if count == 1 else f"{edge.id} {send.firing + 1}/{count}"
        found.append(
            Channel(
                id=name,
                kind=ChannelKind.WEIGHTS,
                source=send.id,
                target=receive.id,
                capacity=tokens + 1,
                initial_tokens=tokens,
                edge=edge.id,
            )
        )
    return found


def _data(edge: Edge, sources: Sequence[Instruction], targets: Sequence[Instruction], room: int) -> list[Channel]:
    return [
        Channel(
            id=f"{_name(source.id)} -> {_name(target.id)}",
            kind=ChannelKind.DATA,
            source=source.id,
            target=target.id,
            fields=edge.fields,
            capacity=room,
            edge=edge.id,
        )
        for source in sources
        for target in targets
    ]


def _state(edge: Edge, sources: Sequence[Instruction], targets: Sequence[Instruction]) -> Channel:
    """Read before write: the first update of the step waits for the reader; the later ones stand behind it."""
    source, target = sources[-1].id, targets[0].id
    return Channel(
        id=f"order {_name(source)} -> {_name(target)}",
        kind=ChannelKind.ORDER,
        source=source,
        target=target,
        capacity=READ_AND_MADE,
        initial_tokens=edge.tokens,
        edge=edge.id,
    )


def _interaction(edge: Edge, sources: Sequence[Instruction], targets: Sequence[Instruction]) -> Channel:
    """Both ends fire once a step, together."""
    (source,), (target,) = sources, targets
    return Channel(id=edge.id, kind=ChannelKind.INTERACTION, source=source.id, target=target.id, edge=edge.id)


def _name(instruction: str) -> str:
    return instruction.removeprefix("run ")


def _unique(channels: Sequence[Channel]) -> tuple[Channel, ...]:
    """Number the second, third, … channel of one id: two edges may join the same ops."""
    seen: Counter[str] = Counter()
    found: list[Channel] = []
    for channel in channels:
        seen[channel.id] += 1
        count = seen[channel.id]
        found.append(channel if count == 1 else replace(channel, id=f"{channel.id} #{count}"))
    return tuple(found)
