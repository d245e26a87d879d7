"""Channels: one per lowered edge and pair of instructions, and what keeps unrelated pools together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import networkx as nx
from msgspec.structs import replace

from flowrl.compiler.emit.instructions import Draft, instructions_of
from flowrl.graph.graph import Edge, EdgeKind, Graph
from flowrl.program.program import Channel, ChannelKind, InstructionKind, Stream

_READ_AND_MADE = 2
"""The rows being read, and the next ones being made."""


def channels_between(graph: Graph, ordered: Sequence[Draft]) -> tuple[Channel, ...]:
    """The channels that carry out the graph's edges, in their order, with unique ids."""
    found: list[Channel] = []
    for edge in graph.edges:
        if edge.kind is EdgeKind.WEIGHTS:
            found.append(_weights(edge, ordered))
        elif edge.kind is EdgeKind.DATA:
            found.extend(_data(graph, edge, ordered))
        elif edge.kind is EdgeKind.STATE:
            found.append(_state(graph, edge, ordered))
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
            capacity=_READ_AND_MADE,
        )
        for other in ends[1:]
    )


def _weights(edge: Edge, ordered: Sequence[Draft]) -> Channel:
    """Starts with 1 + max_lag tokens; room for one more, so that publishing never waits for the receiver's step."""
    ends = {d.instruction.kind: d.instruction.id for d in ordered if d.instruction.edge == edge.id}
    return Channel(
        id=edge.id,
        kind=ChannelKind.WEIGHTS,
        source=ends[InstructionKind.SEND_WEIGHTS],
        target=ends[InstructionKind.RECEIVE_WEIGHTS],
        capacity=edge.tokens + 1,
        initial_tokens=edge.tokens,
        edge=edge.id,
    )


def _data(graph: Graph, edge: Edge, ordered: Sequence[Draft]) -> list[Channel]:
    lag = max((other.tokens - 1 for other in graph.edges if other.kind is EdgeKind.WEIGHTS), default=0)
    return [
        Channel(
            id=f"{_name(source.id)} -> {_name(target.id)}",
            kind=ChannelKind.DATA,
            source=source.id,
            target=target.id,
            fields=edge.fields,
            capacity=_READ_AND_MADE + lag,
            edge=edge.id,
        )
        for source in instructions_of(graph.op(edge.source), ordered)
        for target in instructions_of(graph.op(edge.target), ordered)
    ]


def _state(graph: Graph, edge: Edge, ordered: Sequence[Draft]) -> Channel:
    """Read before write: the first update of the step waits for the reader; the later ones stand behind it."""
    source = instructions_of(graph.op(edge.source), ordered)[-1].id
    target = instructions_of(graph.op(edge.target), ordered)[0].id
    return Channel(
        id=f"order {_name(source)} -> {_name(target)}",
        kind=ChannelKind.ORDER,
        source=source,
        target=target,
        capacity=_READ_AND_MADE,
        initial_tokens=edge.tokens,
        edge=edge.id,
    )


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
