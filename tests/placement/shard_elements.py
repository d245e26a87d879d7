"""A second way to say who holds what of a model and who sends it: element by element, over sets. For tests.

Every element is (class, copy, layer, expert, row, column). A rank's elements are found by slicing lists of indices the
way each backend slices its tensors, never by intervals; senders by the rule that flowrl/placement/sync/overlap.py
states, over those sets.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product

from flowrl.placement.sync.cuts import Cut
from flowrl.placement.sync.tensors import Tensors

Element = tuple[str, int, int, int, int, int]


def chunk(items: Sequence[int], parts: int, which: int) -> list[int]:
    """As torch.chunk."""
    each = -(-len(items) // parts)
    return list(items[which * each : (which + 1) * each])


def elements(cut: Cut, rank: int, tensors: Tensors) -> set[Element]:
    """What a rank holds of one class."""
    held = {"rows": _fsdp, "flat": _zero, "megatron": _megatron, "engine": _engine}[cut.style](cut, rank, tensors)
    return {(tensors.name, copy, *each) for copy in range(tensors.copies) for each in held}


Held = set[tuple[int, int, int, int]]


def _all(tensors: Tensors) -> tuple[list[int], list[int], list[int], list[int]]:
    return list(tensors.layers), list(range(tensors.experts)), list(range(tensors.rows)), list(range(tensors.columns))


def _fsdp(cut: Cut, rank: int, tensors: Tensors) -> Held:
    layers, experts, rows, columns = _all(tensors)
    tp, data = rank % cut.tp, rank // cut.tp
    if tensors.rule.axis in ("column", "kv"):
        rows = chunk(rows, cut.tp, tp)
    if tensors.rule.axis == "row":
        columns = chunk(columns, cut.tp, tp)
    if tensors.rule.experts and cut.ep > 1:
        mine, others = data % cut.ep, max(1, cut.shard // cut.ep)
        shard = data // cut.ep % others
        if cut.ep * others <= tensors.experts:
            # one chunk after another of the whole stack, as if it were cut over all ranks at once
            experts = chunk(experts, cut.ep * others, mine * others + shard)
        else:
            experts, rows = chunk(experts, cut.ep, mine), chunk(rows, others, shard)
    else:
        rows = chunk(rows, cut.shard, data % cut.shard)
    return set(product(layers, experts, rows, columns))


def _zero(cut: Cut, rank: int, tensors: Tensors) -> Held:
    layers, experts, rows, columns = _all(tensors)
    order = [row * len(columns) + column for row in rows for column in columns]
    mine = [divmod(each, len(columns)) for each in chunk(order, cut.shard, rank % cut.shard)]
    return {(layer, expert, row, column) for layer in layers for expert in experts for row, column in mine}


def _stage(cut: Cut, stage: int, tensors: Tensors) -> list[int]:
    match tensors.rule.place:
        case "layers":
            begin, end = (cut.stages[stage], cut.stages[stage + 1]) if cut.pp > 1 else (0, 10**9)
            return [layer for layer in tensors.layers if begin <= layer < end]
        case "first":
            return [0] if stage == 0 else []
        case "last":
            return [0] if stage == cut.pp - 1 else []
        case _:
            return [0] if stage in (0, cut.pp - 1) else []


def _megatron(cut: Cut, rank: int, tensors: Tensors) -> Held:
    _, experts, rows, columns = _all(tensors)
    in_stage = cut.ranks // cut.pp
    layers, here = _stage(cut, rank // in_stage, tensors), rank % in_stage
    ways, part = cut.tp, here % cut.tp
    if tensors.rule.experts:
        ways = cut.tp if cut.ep * cut.tp <= in_stage else 1
        part = here % ways
        experts = chunk(experts, cut.ep, here // ways % cut.ep)
    if tensors.rule.axis in ("column", "kv"):
        rows = chunk(rows, ways, part)
    if tensors.rule.axis == "row":
        columns = chunk(columns, ways, part)
    return set(product(layers, experts, rows, columns))


def _engine(cut: Cut, rank: int, tensors: Tensors) -> Held:
    _, experts, rows, columns = _all(tensors)
    engine, inside = divmod(rank, cut.tp * cut.pp)
    stage, tp = divmod(inside, cut.tp)
    layers, ways, part = _stage(cut, stage, tensors), cut.tp, tp
    if tensors.rule.experts and cut.ep > 1:
        if cut.ep >= cut.tp:
            ways, part = 1, 0
            experts = chunk(experts, cut.ep, (engine * cut.tp + tp) % cut.ep)
        else:
            ways = cut.tp // cut.ep
            part = tp % ways
            experts = chunk(experts, cut.ep, tp // ways)
    if tensors.rule.axis == "kv" and tensors.rule.groups < cut.tp:
        head = len(rows) // tensors.rule.groups
        which = tp // (cut.tp // tensors.rule.groups)
        rows = rows[which * head : (which + 1) * head]
    elif tensors.rule.axis in ("column", "kv"):
        rows = chunk(rows, ways, part)
    if tensors.rule.axis == "row":
        columns = chunk(columns, ways, part)
    return set(product(layers, experts, rows, columns))


@dataclass
class Counted:
    """Elements by link, counted one by one."""

    local: list[int]
    link_in: list[int]
    network_in: list[int]
    link_out: list[int]
    network_out: list[int]
    node_in: Counter[int] = field(default_factory=Counter)
    node_out: Counter[int] = field(default_factory=Counter)
    arrived: list[Counter[Element]] = field(default_factory=list)
    """Each element that a receiving rank got, and how often."""


class Count:
    """Who sends what, over sets of elements."""

    def __init__(
        self,
        have: Sequence[set[Element]],
        want: Sequence[set[Element]],
        source: Sequence[int],
        target: Sequence[int],
        domains: Sequence[int],
        nodes: Sequence[int],
    ) -> None:
        self.source, self.target, self.domains, self.nodes = source, target, domains, nodes
        self.have, self.want = have, want
        senders, receivers = len(have), len(want)
        zeros = [[0] * size for size in (receivers, receivers, receivers, senders, senders)]
        self.found = Counted(*zeros, arrived=[Counter() for _ in want])

    def run(self) -> Counted:
        groups = [self._groups(want) for want in self.want]
        for forced in (True, False):
            for rank, by_holders in enumerate(groups):
                for ranks in sorted(each for each in by_holders if (len(each) == 1) == forced):
                    self._move(rank, ranks, by_holders[ranks])
        return self.found

    def _groups(self, want: set[Element]) -> dict[tuple[int, ...], set[Element]]:
        found: dict[tuple[int, ...], set[Element]] = defaultdict(set)
        for element in want:
            found[tuple(rank for rank, have in enumerate(self.have) if element in have)].add(element)
        return found

    def _move(self, rank: int, ranks: tuple[int, ...], what: set[Element]) -> None:
        found, device = self.found, self.target[rank]
        found.arrived[rank].update(what)
        if any(self.source[each] == device for each in ranks):
            found.local[rank] += len(what)
            return
        near = [each for each in ranks if self.domains[self.source[each]] == self.domains[device]]
        if near:
            sender = min(near, key=lambda each: (self._sent(each), each))
            found.link_in[rank] += len(what)
            found.link_out[sender] += len(what)
            return
        busy = found.node_out
        sender = min(ranks, key=lambda each: (busy[self._node(each)], ranks.index(self._first(each, ranks)), each))
        least = [each for each in ranks if self._node(each) == self._node(sender)]
        sender = min(least, key=lambda each: (self._sent(each), each))
        found.network_in[rank] += len(what)
        found.network_out[sender] += len(what)
        found.node_in[self.nodes[device]] += len(what)
        found.node_out[self._node(sender)] += len(what)

    def _sent(self, rank: int) -> int:
        return self.found.link_out[rank] + self.found.network_out[rank]

    def _node(self, rank: int) -> int:
        return self.nodes[self.source[rank]]

    def _first(self, rank: int, ranks: tuple[int, ...]) -> int:
        return next(each for each in ranks if self._node(each) == self._node(rank))
