"""A role that moves to other devices or into other shards: bytes by link, and seconds, as ledger lines.

Takes the role as it was and as it is to be. Where both clusters share devices, each new rank takes what it lacks from
the old ranks (overlap.py); else all of it goes through a checkpoint, written by the old ranks and read by the new ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from flowrl.machine.cluster import Cluster
from flowrl.placement.cost.ledger import Given, line
from flowrl.placement.cost.placed import Placed
from flowrl.placement.devices import device_names
from flowrl.placement.sync.cuts import cut_of
from flowrl.placement.sync.edge import End, ends_of, words
from flowrl.placement.sync.overlap import held, traffic
from flowrl.placement.sync.states import Part, State, states_of
from flowrl.placement.sync.tensors import Tensors
from flowrl.plan.plan import LedgerLine

LEFT = "left/"
"""Before the name of a device that the new cluster does not have, whatever stands there by that name."""
IN_PLACE, OVER_LINKS, OVER_NETWORK = "in place", "over links", "over the network"
WRITTEN, READ = "written", "read"


@dataclass(slots=True)
class Moved:
    """Elements of one kind of state by link, all new ranks together, and each device's share."""

    local: int = 0
    link: int = 0
    network: int = 0
    link_by: Counter[str] = field(default_factory=Counter[str])
    """The larger of what a device gives and takes is what counts."""
    link_from: Counter[str] = field(default_factory=Counter[str])
    network_by: Counter[str] = field(default_factory=Counter[str])
    network_from: Counter[str] = field(default_factory=Counter[str])


def shared_devices(old: Cluster, new: Cluster) -> frozenset[str]:
    """Devices of both clusters: nodes keep their names, so it is those of one name and one kind."""
    before = _kinds(old)
    return frozenset(name for name, kind in _kinds(new).items() if before.get(name) == kind)


def _kinds(cluster: Cluster) -> dict[str, str]:
    """Kind of each device by its name."""
    return {
        name: group.device.name for group in cluster.groups for node in device_names(cluster, group) for name in node
    }


def known(device: str, shared: frozenset[str]) -> str:
    """A device of the old cluster by a name that no other one of the new cluster has."""
    return device if device in shared else LEFT + device


def moved(old: Placed, new: Placed, before: State, after: State, shared: frozenset[str]) -> Moved:
    """What each new rank takes of one kind of state, and from whom."""
    found = Moved()
    for tensors, source, target in _pairs(before, after):
        here = tuple(known(old.pool.devices[rank], shared) for rank in source.ranks)
        there = tuple(new.pool.devices[rank] for rank in target.ranks)
        way = traffic(tensors, source.cut, target.cut, ends_of(here, there, new.group))
        found.local += sum(way.local)
        found.link += sum(way.link_in)
        found.network += sum(way.network_in)
        for device, linked, far in zip(there, way.link_in, way.network_in, strict=True):
            found.link_by[device] += linked
            found.network_by[device] += far
        for device, linked, far in zip(here, way.link_out, way.network_out, strict=True):
            found.link_from[device] += linked
            found.network_from[device] += far
    return found


def _pairs(before: State, after: State) -> Iterator[tuple[tuple[Tensors, ...], Part, Part]]:
    """Parts that have something in common, with what it is. Each tensor of a layer is in one part of either side."""
    for target in after.parts:
        wanted = {each.name: each for each in target.tensors}
        for source in before.parts:
            common = tuple(_common(source.tensors, wanted))
            if common:
                yield common, source, target


def _common(tensors: Iterable[Tensors], wanted: Mapping[str, Tensors]) -> Iterator[Tensors]:
    for each in (each for each in tensors if each.name in wanted):
        layers = tuple(sorted(set(each.layers) & set(wanted[each.name].layers)))
        if layers:
            yield replace(each, layers=layers)


def state_pairs(old: Placed, new: Placed) -> list[tuple[State, State]]:
    """Kinds of state that the role has before and after, of the same tensors; what only the new one has is made
    anew."""
    before = {state.what: state for state in states_of(old)}
    pairs = [(before[state.what], state) for state in states_of(new) if state.what in before]
    return [(mine, theirs) for mine, theirs in pairs if _boxes(mine) == _boxes(theirs)]


def _boxes(state: State) -> set[tuple[str, int, int, int, int]]:
    return {
        (each.name, each.rows, each.columns, each.experts, each.copies) for part in state.parts for each in part.tensors
    }


# -- from device to device --------------------------------------------------------------------------------------------


def by_device(old: Placed, new: Placed, shared: frozenset[str]) -> tuple[LedgerLine, ...]:
    """Bytes by kind and link, and the seconds of the busiest device."""
    lines: list[LedgerLine] = []
    busy: list[dict[str, float]] = [{}, {}, {}, {}]
    how = f"what shards of {_words(old)} and {_words(new)} have in common"
    for before, after in state_pairs(old, new):
        found = moved(old, new, before, after, shared)
        for link, count in ((IN_PLACE, found.local), (OVER_LINKS, found.link), (OVER_NETWORK, found.network)):
            if count:
                inputs = {"w": after.width, "e": Given(count, f"{how}: {new.model.origin}")}
                lines.append(line(f"{after.what} {link}", new.role.name, "bytes", "w*e", inputs))
        for sums, own in zip(busy, (found.link_by, found.link_from, found.network_by, found.network_from), strict=True):
            for device, count in own.items():
                sums[device] = sums.get(device, 0.0) + count * after.width.value
    rates = new.profile.sync_rates("shards")
    link = min(old.device.link_bytes_per_second, new.device.link_bytes_per_second) * rates.link
    inputs = {
        "l": Given(max((*busy[0].values(), *busy[1].values()), default=0), "busiest device, over links"),
        "n": Given(max((*busy[2].values(), *busy[3].values()), default=0), "busiest device, over the network"),
        "L": Given(link, f"{rates.link:.0%} of a device's link ({rates.source})"),
        "N": _network(old, new),
    }
    return (*lines, line(f"moving {new.role.name}", None, "seconds", "max(l/L, n/N)", inputs))


def _network(*ends: Placed) -> Given:
    rates = ends[0].profile.sync_rates("shards")
    slowest = min(end.group.network_bytes_per_second for end in ends) * rates.network
    return Given(slowest, f"{rates.network:.0%} of one device's network ({rates.source})")


def _words(placed: Placed) -> str:
    cut = cut_of(placed)
    return words(End(placed.role.name, placed.backend, cut, placed.pool.devices, placed.group))


# -- through a checkpoint ---------------------------------------------------------------------------------------------


def by_checkpoint(old: Placed, new: Placed) -> tuple[LedgerLine, ...]:
    """All of it: written once by the old ranks, what several hold in equal parts; each new rank reads what it needs."""
    pairs = state_pairs(old, new)
    return (
        *_bytes(new, [before for before, _ in pairs], WRITTEN),
        *_bytes(new, [after for _, after in pairs], READ),
        _seconds(old, [before for before, _ in pairs], WRITTEN),
        _seconds(new, [after for _, after in pairs], READ),
    )


def from_files(new: Placed) -> tuple[LedgerLine, ...]:
    """The weights, from the files of the model; optimizer states are made anew."""
    states = states_of(new)[:1]
    return (*_bytes(new, states, READ), _seconds(new, states, READ)) if states else ()


def _bytes(placed: Placed, states: Iterable[State], verb: str) -> Iterator[LedgerLine]:
    for state in states:
        once = verb == WRITTEN
        count = state.elements if once else sum(sum(each) for each in _held(state))
        how = "each once" if once else f"what each of {_words(placed)} needs"
        inputs = {"w": state.width, "e": Given(count, f"{how}: {placed.model.origin}")}
        yield line(f"{state.what} {verb}", placed.role.name, "bytes", "w*e", inputs)


def _held(state: State) -> list[tuple[int, ...]]:
    """Elements of each rank of each part."""
    return [held(part.tensors, part.cut) for part in state.parts]


def _seconds(placed: Placed, states: Iterable[State], verb: str) -> LedgerLine:
    """The slower of a device's network and the disk of a node, which a store for all nodes is taken to keep up with."""
    by_rank: dict[int, float] = {}
    for state in states:
        counts = _held(state)
        copies = sum(sum(each) for each in counts) / state.elements if verb == WRITTEN else 1.0
        for part, each in zip(state.parts, counts, strict=True):
            for rank, count in zip(part.ranks, each, strict=True):
                by_rank[rank] = by_rank.get(rank, 0.0) + count * state.width.value / copies
    by_node: dict[str, float] = {}
    for rank, count in by_rank.items():
        node = placed.pool.devices[rank].rpartition("/")[0]
        by_node[node] = by_node.get(node, 0.0) + count
    share = placed.profile.fixed.disk
    inputs = {
        "b": Given(max(by_node.values(), default=0), f"{verb} by the busiest node"),
        "n": Given(max(by_rank.values(), default=0), f"{verb} by the busiest device"),
        "D": Given(placed.group.disk_bytes_per_second * share, f"{share:.0%} of a node's disk"),
        "N": _network(placed),
    }
    verbing = "writing" if verb == WRITTEN else "reading"
    return line(f"{verbing} {placed.role.name}", None, "seconds", "max(b/D, n/N)", inputs)
