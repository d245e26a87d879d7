"""Channels that keep all else out of the rounds of refill. See program/rounds.py for what waits for what."""

from __future__ import annotations

from collections.abc import Sequence

from flowrl.graph.graph import Graph
from flowrl.graph.rates import READ_AND_MADE
from flowrl.program.program import Channel, ChannelKind, Stream
from flowrl.program.rounds import holds


def hold_rounds(graph: Graph, streams: Sequence[Stream], channels: Sequence[Channel]) -> tuple[Channel, ...]:
    """Order from the end of the last round to what waits for it, where nothing else orders the two."""
    tied = {(channel.source, channel.target, channel.initial_tokens) for channel in channels}
    return tuple(
        Channel(
            id=f"rounds {_name(hold.source)} -> {_name(hold.target)}",
            kind=ChannelKind.ORDER,
            source=hold.source,
            target=hold.target,
            capacity=READ_AND_MADE,
            initial_tokens=hold.tokens,
        )
        for hold in holds(graph, streams)
        if (hold.source, hold.target, hold.tokens) not in tied
    )


def _name(instruction: str) -> str:
    return instruction.removeprefix("run ")
