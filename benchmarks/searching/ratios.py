"""The maximum cycle ratio of a program, twice over by means that the product does not use.

Takes a Program and seconds of its instructions; gives the largest seconds per step over its circles: by looking at
every simple circle, where they are few, and by Karp's maximum cycle mean (1978) over the graph of tokens. Arcs are
written from the docstring of program/program.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import lcm

import networkx as nx
import numpy as np
import numpy.typing as npt

from flowrl.program.program import ChannelKind, Program

MOST_CIRCLES = 20_000


@dataclass(frozen=True)
class Wait:
    """`target` starts `seconds` after `source` of `tokens` steps before, at the earliest."""

    source: int
    target: int
    seconds: float
    tokens: int


def waits(program: Program, seconds: Mapping[str, float]) -> tuple[int, list[Wait]]:
    """Instructions that start together are one node."""
    number: dict[str, int] = {}
    for i in program.instructions:
        first = program.together.get(i.id, (i.id,))[0]
        number[i.id] = number.setdefault(first, len(set(number.values())))
    found: list[Wait] = []
    for stream in program.streams:
        for lane in stream.lanes:
            found += [Wait(number[a.id], number[b.id], seconds[a.id], 0) for a, b in pairwise(lane)]
            found.append(Wait(number[lane[-1].id], number[lane[0].id], seconds[lane[-1].id], 1))
    for channel in program.channels:
        if channel.kind is not ChannelKind.INTERACTION:
            source, target, tokens = number[channel.source], number[channel.target], channel.initial_tokens
            found.append(Wait(source, target, seconds[channel.source], tokens))
            found.append(Wait(target, source, 0.0, channel.capacity - tokens))
    return len(set(number.values())), found


def by_circles(arcs: Sequence[Wait]) -> tuple[float, int] | None:
    """The ratio and the least common multiple of the tokens of the circles that have it; None if circles are too many
    to look at."""
    best: dict[tuple[int, int, int], float] = {}
    for arc in arcs:
        key = (arc.source, arc.target, arc.tokens)
        best[key] = max(best.get(key, 0.0), arc.seconds)
    ways: dict[tuple[int, int], list[tuple[float, int]]] = {}
    for (source, target, tokens), seconds in best.items():
        ways.setdefault((source, target), []).append((seconds, tokens))
    ratios: list[tuple[float, int]] = []
    for number, nodes in enumerate(nx.simple_cycles(nx.DiGraph(list(ways)))):
        if number == MOST_CIRCLES:
            return None
        ratios += _ratios([ways[pair] for pair in zip(nodes, [*nodes[1:], nodes[0]], strict=True)])
    most = max(ratio for ratio, _ in ratios)
    return most, lcm(*(tokens for ratio, tokens in ratios if ratio >= most * (1 - 1e-12)))


def _ratios(ways: Sequence[Sequence[tuple[float, int]]]) -> list[tuple[float, int]]:
    """Of the circles along one round of nodes; for each number of tokens the longest."""
    found: dict[int, float] = {0: 0.0}
    for each in ways:
        after: dict[int, float] = {}
        for tokens, seconds in found.items():
            for more, steps in each:
                after[tokens + steps] = max(after.get(tokens + steps, 0.0), seconds + more)
        found = after
    return [(seconds / tokens, tokens) for tokens, seconds in found.items()]


def by_karp(count: int, arcs: Sequence[Wait]) -> float:
    """Nodes are the tokens, an arc of t tokens being t of them in a row; a way from one to the next is as long as the
    longest path without tokens between them. The mean of a circle of tokens is then its ratio."""
    far = longest_paths(count, [arc for arc in arcs if arc.tokens == 0])
    tokens = [(at, place) for at, arc in enumerate(arcs) for place in range(arc.tokens)]
    index = {token: number for number, token in enumerate(tokens)}
    weight = np.full((len(tokens), len(tokens)), -np.inf)
    for (at, place), number in index.items():
        arc = arcs[at]
        if place + 1 < arc.tokens:
            weight[number, index[at, place + 1]] = 0.0
            continue
        for other, onward in enumerate(arcs):
            if onward.tokens:
                weight[number, index[other, 0]] = far[arc.target, onward.source] + onward.seconds
    return _largest_mean(weight)


def longest_paths(count: int, arcs: Sequence[Wait]) -> npt.NDArray[np.float64]:
    """Between all nodes, along arcs that close no circle."""
    order = list(nx.topological_sort(nx.MultiDiGraph([(arc.source, arc.target) for arc in arcs])))
    into: dict[int, list[Wait]] = {}
    for arc in arcs:
        into.setdefault(arc.target, []).append(arc)
    far = np.full((count, count), -np.inf)
    np.fill_diagonal(far, 0.0)
    for node in order:
        for arc in into.get(node, []):
            far[:, node] = np.maximum(far[:, node], far[:, arc.source] + arc.seconds)
    return far


def _largest_mean(weight: npt.NDArray[np.float64]) -> float:
    """Karp: max over nodes of min over k of (D_n - D_k) / (n - k), D_k being the longest walks of k arcs, from a source
    that reaches every node at no cost."""
    count = len(weight)
    walks = [np.zeros(count)]
    for _ in range(count):
        walks.append((walks[-1][:, None] + weight).max(axis=0))
    last = walks[-1]
    with np.errstate(invalid="ignore"):
        means = np.array([(last - walk) / (count - k) for k, walk in enumerate(walks[:-1])])
    means[np.isnan(means)] = np.inf
    return float(np.where(np.isfinite(last), means.min(axis=0), -np.inf).max())
