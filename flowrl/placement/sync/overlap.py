"""The overlap plan of one `=>` edge: from which source rank each receiving rank takes what it needs, in bytes per link.

Takes classes of tensors, two cuts and where their ranks are; gives Traffic. Nothing goes over elements: sides of boxes
are cut by intervals, so a class costs as much as the two cuts have pieces in common.

The rule, the same as the brute-force count of the tests: a rank's elements are sorted by the set of source ranks that
hold them, and all of one set come from one rank: the receiving rank's own device if it holds them; else one of the same
link domain (a node, or more where links join nodes), the one that has sent least; else one of the node that has sent
least over the network, there again the rank that has sent least. What only one rank holds has no choice and counts as
sent before the others choose. Ties go to the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, product
from math import gcd

from flowrl.placement.sync.cuts import Cut, Edges, Place, edges, holders, places
from flowrl.placement.sync.tensors import Rule, Tensors


@dataclass(frozen=True, slots=True)
class Ends:
    """Where the ranks are: the device of each, and the link domain and the node of each device, all by number."""

    source: tuple[int, ...]
    target: tuple[int, ...]
    domains: tuple[int, ...]
    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Traffic:
    """Elements by link. Tuples are by rank of the receiving or the sending side, nodes by number."""

    local: tuple[int, ...]
    """Already on the receiving rank's device."""
    link_in: tuple[int, ...]
    """From other devices of its link domain."""
    network_in: tuple[int, ...]
    link_out: tuple[int, ...]
    network_out: tuple[int, ...]
    node_in: Mapping[int, int]
    """Over the network, by the receiving node."""
    node_out: Mapping[int, int]

    @property
    def needed(self) -> tuple[int, ...]:
        """What each receiving rank takes up."""
        return tuple(map(sum, zip(self.local, self.link_in, self.network_in, strict=True)))


Needs = dict[tuple[int, ...], int]
"""Elements by the source ranks that hold them."""


@lru_cache(maxsize=1024)
def traffic(tensors: tuple[Tensors, ...], source: Cut, target: Cut, ends: Ends) -> Traffic:
    """The overlap plan. Deterministic."""
    alike = _alike(tensors, source, target)
    needs = _needs(alike, source, target)
    moves = _Moves(ends, len(ends.source), len(ends.target))
    kinds: dict[int, tuple[tuple[_Holders, int], ...]] = {}
    for kind, ranks in _kinds(alike, target).items():
        need = needs[kind]
        moves.forced({who[0]: count for who, count in need.items() if len(who) == 1}, ranks)
        several = sorted(each for each in need.items() if len(each[0]) > 1)
        held_by = tuple((moves.holders(who), count) for who, count in several)
        kinds |= dict.fromkeys(ranks, held_by)
    moves.begin()
    for rank, several in sorted(kinds.items()):
        moves.chosen(rank, several)
    return Traffic(
        local=tuple(moves.local),
        link_in=tuple(moves.link_in),
        network_in=tuple(moves.network_in),
        link_out=tuple(moves.link_out),
        network_out=tuple(moves.network_out),
        node_in=_by_node(moves.network_in, ends.target, ends.nodes),
        node_out=_by_node(moves.network_out, ends.source, ends.nodes),
    )


@lru_cache(maxsize=1024)
def held(tensors: tuple[Tensors, ...], cut: Cut) -> tuple[int, ...]:
    """Elements that each rank of a cut holds."""
    found = [0] * cut.ranks
    for each, weight in _alike(tensors, cut, cut).items():
        layers, experts, rows, columns = ([end - start for start, end in pairwise(side)] for side in each.source)
        for (layer, expert, row, column), ranks in holders(cut, each.rule, each.experts).items():
            count = weight * layers[layer] * experts[expert] * rows[row] * columns[column]
            for rank in ranks:
                found[rank] += count
    return tuple(found)


def _by_node(elements: Sequence[int], devices: Sequence[int], nodes: Sequence[int]) -> dict[int, int]:
    found: dict[int, int] = {}
    for count, device in zip(elements, devices, strict=True):
        if count:
            found[nodes[device]] = found.get(nodes[device], 0) + count
    return found


# -- what each kind of receiving rank needs ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Alike:
    """Classes that both cuts divide in the same proportions."""

    rule: Rule
    experts: int
    source: tuple[Edges, ...]
    target: tuple[Edges, ...]
    columns: int = 0
    """Of a matrix that one of both cuts divides in flat order."""
    flat: str = ""
    """Which one does: source or target."""


def _alike(tensors: tuple[Tensors, ...], source: Cut, target: Cut) -> dict[_Alike, int]:
    """Each proportion once, with the elements that its unit stands for."""
    found: dict[_Alike, int] = {}
    flats = [name for name, cut in (("source", source), ("target", target)) if cut.style == "flat"]
    flat = flats[0] if len(flats) == 1 else ""
    for each in tensors:
        here: list[Edges] = []
        there: list[Edges] = []
        unit = each.copies
        for side, (mine, theirs) in enumerate(zip(edges(source, each), edges(target, each), strict=True)):
            step = 1 if flat and side > 1 else gcd(*mine, *theirs) or 1
            unit *= step
            here.append(tuple(map(step.__rfloordiv__, mine)) if step > 1 else mine)
            there.append(tuple(map(step.__rfloordiv__, theirs)) if step > 1 else theirs)
        rule = _bare(each.rule, source, target)
        alike = _Alike(rule, each.experts, tuple(here), tuple(there), each.columns if flat else 0, flat)
        found[alike] = found.get(alike, 0) + unit
    return found


def _bare(rule: Rule, source: Cut, target: Cut) -> Rule:
    """The rule without what changes nothing for these cuts, so that more classes are alike."""
    axis, place, groups = rule.axis, rule.place, rule.groups
    if source.pp == target.pp == 1:
        place = "layers"
    if axis == "kv" and all(cut.style != "engine" or cut.tp <= groups for cut in (source, target)):
        axis, groups = "column", 0
    return Rule(axis, rule.experts, place, groups)


def _kinds(alike: Iterable[_Alike], cut: Cut) -> dict[tuple[Place | None, ...], list[int]]:
    """Receiving ranks by the shards that they take: copies of each other need the same."""
    found: dict[tuple[Place | None, ...], list[int]] = {}
    by_rule = [places(cut, rule, experts) for rule, experts in _rules(alike)]
    for rank, kind in enumerate(zip(*by_rule, strict=True)):
        found.setdefault(kind, []).append(rank)
    return found


def _rules(alike: Iterable[_Alike]) -> list[tuple[Rule, int]]:
    return list(dict.fromkeys((each.rule, each.experts) for each in alike))


def _needs(alike: Mapping[_Alike, int], source: Cut, target: Cut) -> dict[tuple[Place | None, ...], Needs]:
    """Of each kind of receiving rank, elements by holders."""
    rules = _rules(alike)
    shards: dict[tuple[Rule, int], dict[Place, Needs]] = {rule: {} for rule in rules}
    for each, weight in alike.items():
        _add(shards[each.rule, each.experts], each, weight, source, target)
    found: dict[tuple[Place | None, ...], Needs] = {}
    for kind in _kinds(alike, target):
        need = found[kind] = Needs()
        for rule, place in zip(rules, kind, strict=True):
            for ranks, count in shards[rule].get(place, {}).items() if place is not None else ():
                need[ranks] = need.get(ranks, 0) + count
    return found


def _add(shards: dict[Place, Needs], alike: _Alike, weight: int, source: Cut, target: Cut) -> None:
    """The elements of one proportion, by shard of the target and holders in the source."""
    who = holders(source, alike.rule, alike.experts)
    boxes = 2 if alike.flat else 4
    sides = [_common(mine, theirs) for mine, theirs in zip(alike.source[:boxes], alike.target[:boxes], strict=True)]
    for place in holders(target, alike.rule, alike.experts):
        need = shards.setdefault(place, {})
        matrix = _flat_pieces(alike, place) if alike.flat else _box_pieces(sides[2], sides[3], place)
        for layer, layers in sides[0].get(place[0], ()):
            for expert, experts in sides[1].get(place[1], ()):
                times = weight * layers * experts
                for row, column, count in matrix:
                    ranks = who[layer, expert, row, column]
                    need[ranks] = need.get(ranks, 0) + times * count


Piece = tuple[int, int]
"""Which interval of the source, and how much of it."""


def _common(mine: Edges, theirs: Edges) -> dict[int, list[Piece]]:
    """For each interval of the target, what it has in common with those of the source, in one pass over both."""
    found: dict[int, list[Piece]] = {}
    first = 0
    last = len(mine) - 1
    for at in range(len(theirs) - 1):
        low, high = theirs[at], theirs[at + 1]
        if low == high:
            continue
        while mine[first + 1] <= low:
            first += 1
        pieces, here = found.setdefault(at, []), first
        while here < last and mine[here] < high:
            both = min(high, mine[here + 1]) - max(low, mine[here])
            if both > 0:
                pieces.append((here, both))
            here += 1
    return found


def _box_pieces(
    rows: Mapping[int, list[Piece]], columns: Mapping[int, list[Piece]], place: Place
) -> list[tuple[int, int, int]]:
    """Of one matrix, what a box of the target has in common with boxes of the source: which one, and elements."""
    across = columns.get(place[3], ())
    return [(row, column, height * width) for row, height in rows.get(place[2], ()) for column, width in across]


def _flat_pieces(alike: _Alike, place: Place) -> list[tuple[int, int, int]]:
    """The same where one of both cuts divides a matrix in its flat order (ZeRO's partitions) and the other by boxes."""
    mine, theirs = alike.source, alike.target
    pieces: list[tuple[int, int, int]] = []
    if alike.flat == "source":
        box = (*_interval(theirs[2], place[2]), *_interval(theirs[3], place[3]))
        marks = [_in_box(edge, box, alike.columns) for edge in mine[2]]
        pieces = [(at, 0, end - start) for at, (start, end) in enumerate(pairwise(marks))]
    else:
        first, last = _interval(theirs[2], place[2])
        for row, column in product(range(len(mine[2]) - 1), range(len(mine[3]) - 1)):
            box = (*_interval(mine[2], row), *_interval(mine[3], column))
            pieces.append((row, column, _in_box(last, box, alike.columns) - _in_box(first, box, alike.columns)))
    return [each for each in pieces if each[2]]


def _interval(side: Edges, at: int) -> tuple[int, int]:
    return side[at], side[at + 1]


def _in_box(end: int, box: tuple[int, int, int, int], width: int) -> int:
    """How many of the first `end` elements of a matrix, row by row, lie in a box of it."""
    top, bottom, left, right = box
    row, column = divmod(end, width)
    whole = min(max(row - top, 0), bottom - top) * (right - left)
    return whole + (min(max(column - left, 0), right - left) if top <= row < bottom else 0)


# -- who sends it -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Holders:
    """Ranks that hold the same."""

    near: dict[int, dict[int, int]]
    """Link domain → device → rank."""
    nodes: dict[int, list[int]]


class _Moves:
    """Choices of senders, and what they have sent so far."""

    def __init__(self, ends: Ends, sources: int, targets: int) -> None:
        self.ends = ends
        self.local, self.link_in, self.network_in = [0] * targets, [0] * targets, [0] * targets
        self.link_out, self.network_out, self.sent = [0] * sources, [0] * sources, [0] * sources
        self.node_out: dict[int, int] = {}
        self._domains = [ends.domains[device] for device in ends.source]
        self._nodes = [ends.nodes[device] for device in ends.source]
        self._rank_on = {device: rank for rank, device in enumerate(ends.source)}
        self._holders: dict[tuple[int, ...], _Holders] = {}

    def forced(self, solo: Mapping[int, int], ranks: Sequence[int]) -> None:
        """What only one rank holds, by that rank, to all `ranks`, which need the same."""
        if not solo:
            return
        by_domain: dict[int, int] = {}
        domains = self._domains
        for who, count in solo.items():
            domain = domains[who]
            by_domain[domain] = by_domain.get(domain, 0) + count
        everything = sum(solo.values())
        near = dict.fromkeys(by_domain, 0)
        for rank in ranks:
            device = self.ends.target[rank]
            domain, who = self.ends.domains[device], self._rank_on.get(device, -1)
            linked, here = by_domain.get(domain, 0), solo.get(who, 0)
            if domain in near:
                near[domain] += 1
            self.local[rank] += here
            self.link_in[rank] += linked - here
            self.network_in[rank] += everything - linked
            if here:
                self.link_out[who] -= here
        out, far, all_of_them = self.link_out, self.network_out, len(ranks)
        for who, count in solo.items():
            linked = near[domains[who]]
            out[who] += linked * count
            far[who] += (all_of_them - linked) * count

    def begin(self) -> None:
        """What is forced counts as sent before the others choose."""
        self.sent = [linked + far for linked, far in zip(self.link_out, self.network_out, strict=True)]
        for who, far in enumerate(self.network_out):
            node = self._nodes[who]
            self.node_out[node] = self.node_out.get(node, 0) + far

    def holders(self, who: tuple[int, ...]) -> _Holders:
        """These ranks, by where they are."""
        found = self._holders.get(who)
        if found is None:
            found = self._holders[who] = _Holders({}, {})
            for rank in who:
                found.near.setdefault(self._domains[rank], {})[self.ends.source[rank]] = rank
                found.nodes.setdefault(self._nodes[rank], []).append(rank)
        return found

    def chosen(self, rank: int, need: Sequence[tuple[_Holders, int]]) -> None:
        """What several ranks hold, in the order of these."""
        device = self.ends.target[rank]
        domain, sent, out = self.ends.domains[device], self.sent, self.node_out
        for who, count in need:
            near = who.near.get(domain)
            if near is None:
                self.network_in[rank] += count
                node = min(who.nodes, key=out.__getitem__)
                sender = min(who.nodes[node], key=sent.__getitem__)
                self.network_out[sender] += count
                out[node] += count
            elif device in near:
                self.local[rank] += count
                continue
            else:
                self.link_in[rank] += count
                sender = min(near.values(), key=sent.__getitem__)
                self.link_out[sender] += count
            sent[sender] += count
