"""What one `=>` edge costs: the way its weights go, the bytes of its busiest devices by link, and the seconds of both
ends as ledger lines.

Takes the two ends as Placed roles and the edge's transport; gives a Sync, kept by all that it depends on. The bytes are
those of the overlap plan (overlap.py); rates are the catalogue's peaks times the profile's shares.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from math import ceil

from flowrl.machine.cluster import NodeGroup
from flowrl.machine.profile import Profile
from flowrl.machine.shape import ModelShape
from flowrl.machine.sync import TRANSPORTS, default_transport
from flowrl.placement.cost.ledger import Given, Inputs, line
from flowrl.placement.cost.placed import Placed
from flowrl.placement.sync.cuts import Cut, cut_of, outer_edges
from flowrl.placement.sync.overlap import Ends, Traffic, traffic
from flowrl.placement.sync.shares import shares_of
from flowrl.placement.sync.tensors import Tensors, adapter_tensors, tensors_of
from flowrl.plan.plan import LedgerLine


@dataclass(frozen=True, slots=True)
class End:
    """One end of an edge, as far as a hand-over depends on it."""

    role: str
    backend: str
    cut: Cut
    devices: tuple[str, ...]
    group: NodeGroup


@dataclass(frozen=True, slots=True)
class Sync:
    transport: str
    way: str
    send: tuple[LedgerLine, ...]
    """Seconds of the trainer's instruction."""
    receive: tuple[LedgerLine, ...]
    """Seconds of the receiver's: with the trainer's, how long the edge keeps the receiver waiting."""

    @property
    def seconds(self) -> float:
        return sum(each.value for each in (*self.send, *self.receive))


@dataclass(frozen=True, slots=True)
class Links:
    moved: tuple[LedgerLine, ...]
    """Bytes that the way moves."""
    overlap: tuple[LedgerLine, ...]
    """Bytes by link of the overlap plan: the same for `shards`, the least that any way could move for others."""


def sync_of(source: Placed, target: Placed, transport: str | None = None, way: str | None = None) -> Sync:
    """The hand-over from `source` to `target`. `transport` None: `default_transport`'s; `way`, of a direct transport,
    None: the transport's own.

    An adapter travels alone if the receiver keeps it beside the base, which does not change; otherwise all weights.
    """
    return _sync(_key(source, target, transport, way))


def sync_links(source: Placed, target: Placed, transport: str | None = None, way: str | None = None) -> Links:
    """Bytes of the same hand-over."""
    key = _key(source, target, transport, way)
    edge, what = _Edge(key), "adapter" if key.adapter else "weights"
    return Links(edge.links(what), edge.overlap(what))


@dataclass(frozen=True, slots=True)
class _Key:
    """All that a hand-over depends on."""

    shape: ModelShape
    adapter: int
    width: int
    source: End
    target: End
    transport: str | None
    way: str | None
    profile: Profile


def _key(source: Placed, target: Placed, transport: str | None, way: str | None) -> _Key:
    adapter = source.adapter if target.adapter else 0
    here, there = (
        End(each.role.name, each.backend, cut_of(each), each.pool.devices, each.group) for each in (source, target)
    )
    return _Key(source.model, adapter, source.dtype_bytes, here, there, transport, way, source.profile)


@lru_cache(maxsize=8192)
def _sync(key: _Key) -> Sync:
    return _Edge(key).sync("adapter" if key.adapter else "weights")


def ends_of(source: Sequence[str], target: Sequence[str], group: NodeGroup) -> Ends:
    """Devices by number; a link domain is a node, or several where links join them."""
    return _ends(tuple(source), tuple(target), max(1, group.linked_devices // group.devices_per_node))


@lru_cache(maxsize=1024)
def _ends(source: tuple[str, ...], target: tuple[str, ...], joined: int) -> Ends:
    devices = {name: at for at, name in enumerate(dict.fromkeys((*source, *target)))}
    nodes: dict[str, int] = {}
    domains: dict[tuple[str, int], int] = {}
    by_node: list[int] = []
    by_domain: list[int] = []
    for name in devices:
        node = name.rpartition("/")[0]
        stem = node.rstrip("0123456789")
        number = int(node[len(stem) :] or 0)
        by_node.append(nodes.setdefault(node, len(nodes)))
        by_domain.append(domains.setdefault((stem, number // joined), len(domains)))
    return Ends(
        tuple(devices[name] for name in source),
        tuple(devices[name] for name in target),
        tuple(by_domain),
        tuple(by_node),
    )


@lru_cache(maxsize=1024)
def _default(source: tuple[str, ...], target: tuple[str, ...], on_cpu: bool) -> str:
    return default_transport(source, target, on_cpu)


@lru_cache(maxsize=1024)
def _by_domain(devices: tuple[str, ...], joined: int) -> dict[tuple[str, int], int]:
    """Devices in each link domain, of `joined` nodes."""
    found: dict[tuple[str, int], int] = {}
    for node, count in Counter([name.rpartition("/")[0] for name in devices]).items():
        stem = node.rstrip("0123456789")
        domain = (stem, int(node[len(stem) :] or 0) // joined)
        found[domain] = found.get(domain, 0) + count
    return found


class _Edge:
    """Bytes, rates and lines of one hand-over."""

    def __init__(self, key: _Key) -> None:
        source, target, shape = key.source, key.target, key.shape
        on_cpu = source.group.device.is_cpu or target.group.device.is_cpu
        self.transport = key.transport or ""
        if self.transport not in TRANSPORTS:
            self.transport = _default(source.devices, target.devices, on_cpu)
        by = TRANSPORTS[self.transport]
        self.way = key.way if key.way is not None and by.direct else by.way
        self.tensors = adapter_tensors(key.adapter, shape.layers) if key.adapter else tensors_of(shape)
        self.width, self.source, self.target, self.profile = key.width, source, target, key.profile
        self.origin, self.on_cpu = shape.origin, on_cpu
        self.rates = self.profile.sync_rates(self.way)
        self.held = shares_of(self.tensors, source.cut)
        self.whole = sum(each.elements for each in self.tensors) * key.width
        joined = max(1, source.group.linked_devices // source.group.devices_per_node)
        self.by_domain = _by_domain(source.devices, joined)
        self.tight = len(self.by_domain) == 1 and self.by_domain.keys() == _by_domain(target.devices, joined).keys()

    @cached_property
    def moved(self) -> Traffic:
        """The overlap plan: only direct shards and an object store need it for their seconds."""
        ends = ends_of(self.source.devices, self.target.devices, self.source.group)
        return traffic(self.tensors, self.source.cut, self.target.cut, ends)

    def sync(self, what: str) -> Sync:
        inputs, direct = self._inputs(), TRANSPORTS[self.transport].direct
        if not direct:
            inputs |= self._on_hosts()
        if self.transport == "object_store" or (self.way == "shards" and direct):
            inputs |= self._busiest()
        if self.transport in ("shared_memory", "object_store", "disk"):
            send, receive = self._by_host(what, inputs)
            if self.on_cpu:  # each tensor is found and copied alone, by both
                send.append(self._line("hand-over", False, "y", inputs))
        elif self.way == "shards":
            send, receive = [], [self._line(f"{what} over links", True, "max(l/L, n/N)", inputs)]
        else:
            send = [self._line(f"{what} gathered", False, "g/G", inputs)]
            formula = "c/C" if self.way == "gather" else "W/B"
            receive = [self._line(f"{what} {_TAKEN[self.way]}", True, formula, inputs)]
        if not self.on_cpu:
            receive.append(self._line("tensors taken up", True, "T*t + k*s", inputs))
        receive.append(self._line("hand-over", True, "v + y" if self.on_cpu else "p + y", inputs))
        return Sync(self.transport, self.way, tuple(send), tuple(receive))

    def _by_host(self, what: str, inputs: Inputs) -> tuple[list[LedgerLine], list[LedgerLine]]:
        """Through host memory or a disk: each rank writes what it holds, each receiver reads what it needs."""
        if self.transport == "disk":
            return (
                [self._line(f"{what} written", False, "max(b/h, W/d)", inputs)],
                [self._line(f"{what} read", True, "max(r/H, W/d)", inputs)],
            )
        read = "max(r/H, n/N)" if self.transport == "object_store" else "r/H"
        return (
            [self._line(f"{what} written", False, "b/h", inputs)],
            [self._line(f"{what} read", True, read, inputs)],
        )

    def _line(self, what: str, receiving: bool, formula: str, inputs: Inputs) -> LedgerLine:
        return line(what, (self.target if receiving else self.source).role, "seconds", formula, inputs)

    def _busiest(self) -> dict[str, Given]:
        """Bytes of the busiest device by link."""
        moved = self.moved
        how = f"overlap of {words(self.source)} and {words(self.target)}: {self.origin}"
        linked, far = max(*moved.link_in, *moved.link_out), max(*moved.network_in, *moved.network_out)
        return {
            "l": Given(linked * self.width, f"busiest device, over links, {how}"),
            "n": Given(far * self.width, f"busiest device, over the network, {how}"),
        }

    def _inputs(self) -> dict[str, Given]:
        """Bytes of the busiest device, and what each link gives."""
        rates, fixed = self.rates, self.profile.fixed
        here, there = self.source.group, self.target.group
        missing = self.whole - self.held.least * self.width
        tensors = max_tensors(self.tensors, self.target.cut)
        piece = self.profile.memory.bucket_bytes
        network = min(here.network_bytes_per_second, there.network_bytes_per_second) * rates.network
        link = min(here.device.link_bytes_per_second, there.device.link_bytes_per_second) * rates.link
        one = Given(link, f"{rates.link:.0%} of a device's link") if self.tight else self._card(network)
        return {
            "W": Given(self.whole, f"all of it, once: {self.origin}"),
            "g": Given(missing, f"what a rank of {words(self.source)} lacks of it"),
            "c": Given(self.whole, "read on the same device"),
            "L": Given(link, f"{rates.link:.0%} of the link of {here.device.name} ({rates.source})"),
            "N": self._card(network),
            "G": self._ring(link, network),
            "B": one,
            "C": Given(there.device.memory_bytes_per_second / 2, f"catalogue {there.device.name}: read and written"),
            "T": Given(tensors, f"tensors of which a rank of {words(self.target)} takes a part: {self.origin}"),
            "t": Given(rates.tensor_seconds, f"a tensor ({rates.source})"),
            "k": Given(ceil(self.whole / piece) if piece else 0, "pieces (profile: memory.bucket_bytes)"),
            "s": Given(rates.bucket_seconds, f"a piece ({rates.source})"),
            "y": Given(fixed.sync_seconds, f"lock, cache reset ({self.profile.origin})"),
            "p": Given(rates.seconds, f"pause of an engine ({rates.source})"),
            "v": Given(
                self.profile.rates(there.device, self.target.backend).weights_seconds,
                f"weights taken up by {self.target.backend} ({self.profile.origin})",
            ),
        }

    def _on_hosts(self) -> dict[str, Given]:
        """Bytes through the memory of hosts: each rank writes what it holds, what several hold in equal parts, and each
        receiver reads what it needs."""
        here, there = self.source, self.target
        rates = [
            end.group.device.host_bytes_per_second * self.profile.rates(end.group.device, end.backend).host
            for end in (here, there)
        ]
        copies = self.held.together * self.width / self.whole
        needed = shares_of(self.tensors, there.cut).most
        disk = there.group.disk_bytes_per_second * self.profile.fixed.disk
        return {
            "b": Given(self.held.most / copies * self.width, f"written by the busiest rank of {words(here)}"),
            "r": Given(needed * self.width, f"taken up by the busiest rank of {words(there)}"),
            "h": Given(rates[0], f"host link of {here.group.device.name}, as achieved"),
            "H": Given(rates[1], f"host link of {there.group.device.name}, as achieved"),
            "d": Given(disk, "one node's disk"),
        }

    def _card(self, network: float) -> Given:
        return Given(network, f"{self.rates.network:.0%} of one device's network ({self.rates.source})")

    def _ring(self, link: float, network: float) -> Given:
        """A gather over the trainer's ranks: links in one domain; between nodes all of a node's network cards, each
        with a ring of its own, at most the link."""
        if len(self.by_domain) == 1:
            return Given(link, f"{self.rates.link:.0%} of a device's link ({self.rates.source})")
        cards = min(self.by_domain.values())
        return Given(min(link, cards * network), f"{cards} network cards of a node, at most a link")

    def overlap(self, what: str) -> tuple[LedgerLine, ...]:
        """Bytes of the overlap plan, all receivers together."""
        moved = self.moved
        sums = {"local": moved.local, "over links": moved.link_in, "over the network": moved.network_in}
        how = f"what shards of {words(self.source)} and {words(self.target)} have in common: {self.origin}"
        given = {name: {**self._width(), "e": Given(sum(each), how)} for name, each in sums.items()}
        lines = (line(f"{what} {name}", self.target.role, "bytes", "w*e", inputs) for name, inputs in given.items())
        return tuple(each for each in lines if each.value)

    def links(self, what: str) -> tuple[LedgerLine, ...]:
        """Bytes as the way moves them, of all devices together."""
        if self.way == "shards":
            return self.overlap(what)
        inputs = {
            **self._width(),
            "P": Given(self.whole // self.width, f"all of it, once: {self.origin}"),
            "n": Given(len(self.source.devices), f"ranks of {self.source.role}"),
            "h": Given(self.held.together, f"held by {words(self.source)}, together"),
            "m": Given(len(self.target.devices), f"ranks of {self.target.role}"),
        }
        gathered = line(f"{what} gathered", self.source.role, "bytes", "w*(n*P - h)", inputs)
        sent = line(f"{what} broadcast", self.target.role, "bytes", "w*m*P", inputs)
        return (gathered, sent) if self.way == "broadcast" else (gathered,)

    def _width(self) -> dict[str, Given]:
        return {"w": Given(self.width, "bytes of a weight in compute")}


_TAKEN = {"gather": "taken up", "broadcast": "broadcast"}


@lru_cache(maxsize=4096)
def max_tensors(tensors: tuple[Tensors, ...], cut: Cut) -> int:
    """Tensors, as transformers names them, of which the busiest rank holds a part."""
    found = 0
    for each in tensors:
        layers, experts = (max([high - low for low, high in pairwise(side)]) for side in outer_edges(cut, each))
        found += layers * experts * each.copies
    return found


def words(end: End) -> str:
    """Such as `16 ranks of megatron, tp 4, pp 2`."""
    sizes = ((name, getattr(end.cut, name)) for name in ("tp", "pp", "ep"))
    told = "".join(f", {name} {size}" for name, size in sizes if size > 1)
    shards = f", {end.cut.shard} shards" if end.cut.style in ("rows", "flat") else ""
    return f"{len(end.devices)} ranks of {end.backend}{told}{shards}"
