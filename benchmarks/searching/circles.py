"""The circles of a program that may bound its step: which instructions wait for each other in turn, and over how many
steps.

Takes a Program whose roles all stay on their devices; gives every circle of its event graph but those that another is
never shorter than. Written from the docstrings of program/program.py and compiler/emit/residency.py: a lane is one
after another and starts again a step later, a receiver waits for its channel's tokens, a sender for room; a role that
leaves its devices is moved around each run of its neighbouring instructions, in two parts where its engine receives
weights. A move that a choice does not make takes no time, so one set of circles serves all choices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from math import gcd

import networkx as nx
import numpy as np
import numpy.typing as npt

from flowrl.program.program import ChannelKind, Instruction, InstructionKind, Program


@dataclass(frozen=True)
class Part:
    """What takes time: a firing of an op, an end of a weights edge, or a move (`load`, `cache`, `offload`)."""

    kind: str
    role: str
    what: str
    """Op or edge; of a move empty."""


@dataclass(frozen=True)
class Circles:
    parts: tuple[Part, ...]
    counts: npt.NDArray[np.float64]
    """How often each circle (rows) has each part (columns)."""
    tokens: npt.NDArray[np.float64]
    """Steps that each circle takes."""


@dataclass(frozen=True)
class _Arc:
    source: int
    target: int
    full: bool
    """Whether it waits for all of its source, or only for its start."""
    tokens: int


def circles(program: Program) -> Circles:
    """Those of the plain step: what works only every k steps takes no time."""
    graph = _EventGraph(program)
    found = _longest(_found(graph), len(graph.seconds))
    parts = tuple(dict.fromkeys(part for own in graph.seconds for part in own))
    place = {part: at for at, part in enumerate(parts)}
    counts, tokens = np.zeros((len(found), len(parts))), np.zeros(len(found))
    for row, (nodes, steps) in enumerate(found):
        tokens[row] = steps
        for node in nodes:
            for part in graph.seconds[node]:
                counts[row, place[part]] += 1
    return Circles(parts, counts, tokens)


class _EventGraph:
    """Nodes are instructions, those of an interaction one."""

    def __init__(self, program: Program) -> None:
        self.seconds: list[list[Part]] = []
        self.arcs: list[_Arc] = []
        self._node: dict[str, int] = {}
        self._together = program.together
        for stream in program.streams:
            moving = stream.slots == 1 and len({i.role for i in stream.instructions}) > 1
            for lane in stream.lanes:
                self._lane(list(_moved(lane)) if moving else [*lane])
        for channel in program.channels:
            if channel.kind is not ChannelKind.INTERACTION:
                source, target = self._node[channel.source], self._node[channel.target]
                self.arcs.append(_Arc(source, target, True, channel.initial_tokens))
                self.arcs.append(_Arc(target, source, False, channel.capacity - channel.initial_tokens))
        self.arcs = _needed(self.arcs, len(self.seconds))

    def _lane(self, lane: Sequence[Instruction | Part]) -> None:
        nodes = [self._of(each) for each in lane]
        self.arcs += [_Arc(one, other, True, 0) for one, other in pairwise(nodes)]
        self.arcs.append(_Arc(nodes[-1], nodes[0], True, 1))

    def _of(self, each: Instruction | Part) -> int:
        if isinstance(each, Part):
            self.seconds.append([each])
            return len(self.seconds) - 1
        first = self._together.get(each.id, (each.id,))[0]
        if first not in self._node:
            self._node[first] = len(self.seconds)
            self.seconds.append([])
        node = self._node[each.id] = self._node[first]
        part = _part(each)
        if part is not None and not self.seconds[node]:
            self.seconds[node].append(part)
        return node


def _part(i: Instruction) -> Part | None:
    if i.every_steps != 1 or i.kind is InstructionKind.SAVE:
        return None
    return Part(i.kind.value, i.role, (i.op if i.kind is InstructionKind.RUN else i.edge) or "")


def _moved(lane: Sequence[Instruction]) -> Iterator[Instruction | Part]:
    """With the moves that a role would make around each visit."""
    for role, visit in groupby(lane, key=lambda i: i.role):
        own = list(visit)
        works = gcd(*(1 if i.kind is InstructionKind.SAVE else i.every_steps for i in own)) == 1
        received = [at for at, i in enumerate(own) if i.kind is InstructionKind.RECEIVE_WEIGHTS]
        last = received[-1] + 1 if received else 0
        if works:
            yield Part("load", role, "")
        yield from own[:last]
        if works:
            yield Part("cache", role, "")
        yield from own[last:]
        if works:
            yield Part("offload", role, "")


def _needed(arcs: Sequence[_Arc], count: int) -> list[_Arc]:
    """Without arcs for which a path stands that waits as long for no more tokens."""
    kept = list(dict.fromkeys(arcs))
    for arc in list(kept):
        if arc.source == arc.target and arc.full:
            continue
        others = [each for each in kept if each is not arc]
        if _stands_for(others, arc, count):
            kept = others
    return kept


def _stands_for(arcs: Sequence[_Arc], arc: _Arc, count: int) -> bool:
    leaving: list[list[_Arc]] = [[] for _ in range(count)]
    for each in arcs:
        leaving[each.source].append(each)
    ready = [(each.target, each.tokens) for each in leaving[arc.source] if each.full or not arc.full]
    least: dict[int, int] = {}
    while ready:
        node, tokens = ready.pop()
        if tokens > arc.tokens or least.get(node, tokens + 1) <= tokens:
            continue
        if node == arc.target:
            return True
        least[node] = tokens
        ready += [(each.target, tokens + each.tokens) for each in leaving[node]]
    return False


def _found(graph: _EventGraph) -> Iterator[tuple[frozenset[int], int]]:
    """The nodes that each circle waits for, and its tokens."""
    ways: dict[tuple[int, int], list[_Arc]] = {}
    for arc in graph.arcs:
        ways.setdefault((arc.source, arc.target), []).append(arc)
    digraph: nx.DiGraph[int] = nx.DiGraph(list(ways))
    for nodes in nx.simple_cycles(digraph):
        found = [(frozenset[int](), 0)]
        for source, target in zip(nodes, [*nodes[1:], nodes[0]], strict=True):
            found = [
                (waited | ({source} if arc.full else set()), tokens + arc.tokens)
                for waited, tokens in found
                for arc in ways[source, target]
            ]
        yield from found


def _longest(found: Iterator[tuple[frozenset[int], int]], count: int) -> list[tuple[frozenset[int], int]]:
    """Without circles of which another has all nodes and no more tokens."""
    every = sorted(dict.fromkeys(found), key=lambda each: (each[1], -len(each[0])))
    kept: list[tuple[frozenset[int], int]] = []
    for nodes, tokens in every:
        if nodes and not any(nodes <= other for other, steps in kept if steps <= tokens):
            kept.append((nodes, tokens))
    return kept
