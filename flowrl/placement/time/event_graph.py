"""The event graph of the program that a placement would get, made without emitting the program.

Takes a lowered graph and, for each role on devices, its pool and whether it leaves it; gives arcs between numbered
nodes, whose maximum cycle ratio is the step (program/ratio.py). Knows no seconds: step.py does.

Order and channels are those of compiler/emit, which depend on the graph alone; a pool's lane is its share of that
order, with load and offload put in as emit does. So the ratio is that of the emitted program, to rounding. Three things
are left out, none of which changes it: checkpoints, which are no part of the plain step; firings of an update after its
first, where nothing else stands between them (they are one node that takes as long); and arcs along which another path
waits as long for as few tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from flowrl.compiler.emit.channels import channels_between
from flowrl.compiler.emit.instructions import drafts
from flowrl.compiler.emit.order import in_order
from flowrl.compiler.emit.residency import with_residency
from flowrl.graph.graph import Edge, Graph
from flowrl.graph.interactions import interactions
from flowrl.graph.once import once
from flowrl.graph.rows import rows_of
from flowrl.placement.cost.placed import HOST, needs_devices
from flowrl.plan.plan import Layout, Pool, RolePlacement, StageRun
from flowrl.program.program import MOVES, Channel, ChannelKind, Instruction, InstructionKind, Stream
from flowrl.program.rounds import holds, last_ops

FREE = -1
"""The pool of a role that is not placed yet: its own ops follow one another, and it holds nobody up."""
WEIGHTS = (InstructionKind.SEND_WEIGHTS, InstructionKind.RECEIVE_WEIGHTS)
MOST_REDUCED = 64
"""Nodes of a graph up to which arcs that say nothing new are looked for: their cube is work."""


@dataclass(frozen=True, slots=True)
class Node:
    """What starts at one moment: firings of an op, all members of an interaction, one end of a weights edge."""

    kind: InstructionKind
    roles: tuple[str, ...]
    ops: tuple[str, ...]
    """Ids; of an interaction several, of a weights edge none."""
    edge: Edge | None
    firings: int
    """Of the plain step: 0 for what works only every k steps."""
    instructions: tuple[Instruction, ...]
    """One for each of `roles`: the first firing."""


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a role on devices is. `pool`: any number from 0, or FREE."""

    pool: int
    leaves: bool = False
    """Whether it leaves the devices while others of the pool work."""
    staged: bool = False
    """Whether its engine then wakes in two parts."""


Moves = tuple[tuple[int, InstructionKind], ...]
"""Place among the roles on devices, and what is done."""


@dataclass(frozen=True, slots=True)
class Wait:
    """An arc: `target` starts the seconds of `source` (if it is `full`; else none) and of moves after it."""

    source: int
    target: int
    full: bool
    tokens: int
    moves: Moves = ()


@dataclass(frozen=True, slots=True)
class Laid:
    """The graph of one placement. Arcs without tokens come first, in the order of their sources: it is topological."""

    forward: tuple[Wait, ...]
    back: tuple[Wait, ...]
    loads: tuple[tuple[tuple[int, ...], Moves], ...]
    """Of each pool its nodes and moves: what it does in a step, one after the other."""


class EventGraph:
    """Of all placements of one graph; made once."""

    def __init__(self, graph: Graph) -> None:
        self.roles = tuple(role.name for role in graph.roles if needs_devices(role))
        self.on_host = len([role for role in graph.roles if not needs_devices(role)])
        device = Pool(name="devices", devices=("0",), device="", roles=_entries(self.roles))
        host = Pool(name=HOST, devices=(), device=HOST, roles=_entries([r.name for r in graph.roles]), slots=2)
        # The host comes first, so that roles on devices overwrite their entry in it.
        ordered = in_order(drafts(graph, (host, device), StageRun(steps=2)), graph)
        instructions = [d.instruction for d in ordered if d.instruction.kind is not InstructionKind.SAVE]
        self.nodes, node_of = _nodes(graph, instructions)
        self._lanes = {
            role.name: [at for at, node in enumerate(self.nodes) if role.name in node.roles] for role in graph.roles
        }
        own = [arc for lane in self._lanes.values() for arc in _lane_arcs(lane)]
        given = (*own, *_channel_arcs(channels_between(graph, ordered), node_of))
        on_host = tuple(i for i in instructions if i.role not in self.roles)
        held = holds(graph, [Stream(pool=HOST, instructions=on_host, slots=2)])
        given += tuple(Wait(node_of[each.source], node_of[each.target], True, each.tokens) for each in held)
        self._round, last = rows_of(graph).round, last_ops(graph)
        self._ends = [at for at, node in enumerate(self.nodes) if set(last) & set(node.ops)]
        self._arcs = _reduced(_once(given), len(self.nodes))
        self._laid: dict[tuple[Spot, ...], Laid] = {}

    def laid(self, homes: tuple[Spot, ...]) -> Laid:
        """For roles on devices, in the order of `roles`. Kept: a search asks for the same pools often."""
        found = self._laid.get(homes)
        if found is None:
            found = self._laid[homes] = self._made(homes)
        return found

    def _made(self, homes: Sequence[Spot]) -> Laid:
        arcs, loads = list(self._arcs), list[tuple[tuple[int, ...], Moves]]()
        for pool in dict.fromkeys(home.pool for home in homes if home.pool != FREE):
            lane = self._lane({role: home for role, home in zip(self.roles, homes, strict=True) if home.pool == pool})
            arcs += lane
            own = [arc for arc in lane if arc.source not in self._ends]
            loads.append((tuple(each.source for each in own), tuple(move for each in own for move in each.moves)))
        forward = sorted((arc for arc in arcs if arc.tokens == 0), key=lambda arc: arc.source)
        return Laid(tuple(forward), tuple(arc for arc in arcs if arc.tokens), tuple(loads))

    def _lane(self, homes: dict[str, Spot]) -> list[Wait]:
        """Arcs of one pool's stream: from each node to the next, and from the last to the first of the next step."""
        own = [(at, i) for at, node in enumerate(self.nodes) for i in node.instructions if i.role in homes]
        if not own:
            return []
        entries = (RolePlacement(role=name, layout=Layout(), offloaded=spot.leaves) for name, spot in homes.items())
        pool = Pool(name="", devices=("0",), device="", roles=tuple(entries))
        staged = [name for name, spot in homes.items() if spot.staged]
        stream = with_residency([i for _, i in own], pool, staged)
        return self._joined(stream, {i.id: at for at, i in own})

    def _joined(self, stream: Sequence[Instruction], place: Mapping[str, int]) -> list[Wait]:
        start = next(number for number, i in enumerate(stream) if i.kind not in MOVES)
        found, moves, source = list[Wait](), Moves(), place[stream[start].id]
        for i in (*stream[start + 1 :], *stream[:start]):
            if i.kind not in MOVES:
                found.append(Wait(source, place[i.id], True, 0, moves))
                source, moves = place[i.id], Moves()
            elif i.every_steps == 1:
                moves = (*moves, (self.roles.index(i.role), i.kind))
        lane = [*found, Wait(source, place[stream[start].id], True, 1, moves)]
        return [*lane, *self._held(lane)]

    def _held(self, lane: Sequence[Wait]) -> Iterator[Wait]:
        """What stands behind a round of refill in the lane, moves before it too, waits for the end of the last one."""
        behind = [arc for arc in lane if self._in_round(arc.source)][-1:]
        for arc in behind:
            if not self._in_round(arc.target):
                yield from (replace(arc, source=end) for end in self._ends)

    def _in_round(self, node: int) -> bool:
        return not self._round.isdisjoint(self.nodes[node].ops)


@once
def event_graph(graph: Graph) -> EventGraph:
    """The one of a graph."""
    return EventGraph(graph)


def _entries(roles: Sequence[str]) -> tuple[RolePlacement, ...]:
    return tuple(RolePlacement(role=role, layout=Layout()) for role in roles)


def _nodes(graph: Graph, instructions: Sequence[Instruction]) -> tuple[tuple[Node, ...], dict[str, int]]:
    """Nodes in the order of the step, and the node of each instruction."""
    edges = {edge.id: edge for edge in graph.edges}
    tied = {id: group for group in interactions(graph) for id in group}
    found: list[Node] = []
    node_of: dict[str, int] = {}
    for i in instructions:
        op, last, plain = i.op or "", found[-1] if found else None, int(i.every_steps == 1)
        if last is not None and op in last.ops:
            found[-1] = replace(last, firings=last.firings + plain)
        elif last is not None and op in tied and last.ops and last.ops[0] in tied[op]:
            more = (*last.instructions, i)
            found[-1] = replace(last, roles=(*last.roles, i.role), ops=(*last.ops, op), instructions=more)
        else:
            edge = edges[i.edge] if i.kind in WEIGHTS and i.edge is not None else None
            found.append(Node(i.kind, (i.role,), (op,) if op else (), edge, plain, (i,)))
        node_of[i.id] = len(found) - 1
    return tuple(found), node_of


def _lane_arcs(lane: Sequence[int]) -> Iterator[Wait]:
    yield from (Wait(one, other, True, 0) for one, other in pairwise(lane))
    if lane:
        yield Wait(lane[-1], lane[0], True, 1)


def _channel_arcs(channels: Sequence[Channel], node_of: dict[str, int]) -> Iterator[Wait]:
    """Of firings that are one node the arcs within it say nothing."""
    for channel in channels:
        if channel.kind is ChannelKind.INTERACTION:
            continue
        source, target = node_of[channel.source], node_of[channel.target]
        if source != target or channel.initial_tokens:
            yield Wait(source, target, True, channel.initial_tokens)
        yield Wait(target, source, False, channel.capacity - channel.initial_tokens)


def _once(arcs: Sequence[Wait]) -> list[Wait]:
    """Of arcs between the same nodes those that wait longest."""
    found: dict[tuple[int, int, bool], Wait] = {}
    for arc in arcs:
        key = (arc.source, arc.target, arc.full)
        if key not in found or arc.tokens < found[key].tokens:
            found[key] = arc
    full = {(arc.source, arc.target): arc.tokens for arc in found.values() if arc.full}
    return [
        arc for arc in found.values() if arc.full or full.get((arc.source, arc.target), arc.tokens + 1) > arc.tokens
    ]


def _reduced(arcs: list[Wait], count: int) -> list[Wait]:
    """Without arcs for which another path has no more tokens: it takes no less, as no node takes less than nothing. The
    path of an arc that waits for its source must wait for it too. No two arcs can stand for each other: the rest of
    both paths would be a circle without tokens."""
    if count > MOST_REDUCED:
        return arcs
    far = 1 << 30
    least = [[far] * count for _ in range(count)]
    for arc in arcs:
        least[arc.source][arc.target] = min(least[arc.source][arc.target], arc.tokens)
    for middle in range(count):
        onward = least[middle]
        for row in least:
            first = row[middle]
            if first < far:
                row[:] = [min(direct, first + rest) for direct, rest in zip(row, onward, strict=True)]
    return [arc for arc in arcs if not any(_goes_before(other, arc, least) for other in arcs)]


def _goes_before(first: Wait, arc: Wait, least: Sequence[Sequence[int]]) -> bool:
    """Whether a path that starts with the arc `first` stands for `arc`."""
    if first is arc or first.source != arc.source or first.full < arc.full:
        return False
    if first.target == arc.target:
        return first.tokens <= arc.tokens and (first.full > arc.full or first.tokens < arc.tokens)
    return first.target != arc.source and first.tokens + least[first.target][arc.target] <= arc.tokens
