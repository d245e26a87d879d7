"""Ways to share devices between roles: which roles are in a pool together, on which group of nodes, under which name.

Takes a graph, a cluster and a checked request; says what is allowed and how pools are named and labelled. Knows no
sizes, no memory and no time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flowrl.graph.graph import EdgeKind, Graph, Kind
from flowrl.machine.cluster import Cluster, NodeGroup
from flowrl.placement.cost.placed import needs_devices, sides
from flowrl.placement.request import Mode, PlacementRequest

ALL, ROLLOUT, TRAIN = "all", "rollout", "train"


@dataclass(frozen=True, slots=True)
class Part:
    """Roles that share a pool, and the group of nodes that it is on."""

    roles: tuple[str, ...]
    group: str


class Ways:
    """What a request allows of pools that are not written out."""

    def __init__(self, graph: Graph, cluster: Cluster, request: PlacementRequest) -> None:
        self.graph, self.cluster, self.request = graph, cluster, request
        self.roles = tuple(role.name for role in graph.roles if needs_devices(role))
        self.groups = {group.name: group for group in cluster.groups}
        self._apart = [frozenset(group) for group in (*request.apart, *sides(graph))]
        self._generators = {role.name for role in graph.roles if role.kind is Kind.GENERATOR}
        self._trainers = {role.name for role in graph.roles if role.trainable}
        self._actor = _actor(graph)

    @property
    def most_pools(self) -> int:
        """Of any way."""
        if self.request.mode is Mode.COLOCATED:
            return 1
        if self.request.mode is Mode.DISAGGREGATED:
            return 1 + max((len(side) for side in sides(self.graph)), default=1)
        return len(self.roles)

    def may_join(self, role: str, others: Sequence[str]) -> bool:
        """Whether a role may share a pool with `others`, as far as these alone decide it."""
        if any(role in group and not group.isdisjoint(others) for group in self._apart):
            return False
        pins = self.request.pin
        if role in pins and any(pins.get(other, pins[role]) != pins[role] for other in others):
            return False
        if self.request.mode is Mode.DISAGGREGATED:
            return all((role in self._generators) == (other in self._generators) for other in others)
        return True

    def allowed(self, parts: Sequence[Part]) -> bool:
        """Whether a whole way keeps what pins and the mode ask."""
        if self.request.mode is Mode.DISAGGREGATED and not self._splits(parts):
            return False
        homes: dict[str, int] = {}
        for number, part in enumerate(parts):
            for role in part.roles:
                pinned = self.request.pin.get(role)
                if pinned is None:
                    continue
                if homes.setdefault(pinned, number) != number or not self._may_be_called(pinned, part, len(parts)):
                    return False
        return True

    def _splits(self, parts: Sequence[Part]) -> bool:
        """Generators in a pool, or one for each side of an interaction; all else in another."""
        rest = [part for part in parts if not self._generators.issuperset(part.roles)]
        return len(rest) == 1 and len(parts) - 1 == max(1, self.most_pools - 1)

    def _may_be_called(self, name: str, part: Part, count: int) -> bool:
        if name == ALL:
            return count == 1
        if count == 1:
            return False
        wanted = {ROLLOUT: self._generators, TRAIN: self._trainers}.get(name)
        return wanted is None or not wanted.isdisjoint(part.roles)

    def names(self, parts: Sequence[Part]) -> list[str]:
        """Of the pools: `all` if there is one; else as pins say, `rollout` for the one that holds generators alone,
        `train` for that of the actor's trainer, and otherwise that of its first role."""
        if len(parts) == 1:
            return [ALL]
        names = [next((self.request.pin[r] for r in part.roles if r in self.request.pin), "") for part in parts]
        own = [number for number, part in enumerate(parts) if self._generators.issuperset(part.roles)]
        if len(own) == 1 and ROLLOUT not in names:
            names[own[0]] = names[own[0]] or ROLLOUT
        for number, part in enumerate(parts):
            if self._actor in part.roles and TRAIN not in names:
                names[number] = names[number] or TRAIN
        for number, part in enumerate(parts):
            name = names[number] or part.roles[0]
            while name in names[:number] or (not names[number] and name in (*names[number + 1 :], ALL, "host")):
                name = f"{name}_pool"
            names[number] = name
        return names

    def label(self, parts: Sequence[Part], sizes: Sequence[int], names: Sequence[str]) -> str:
        """What a decision calls a way with these sizes."""
        mixed = len(self.groups) > 1
        if len(parts) == 1:
            where = f" on {parts[0].group}" if mixed else ""
            return f"colocated: {sizes[0]} device{'' if sizes[0] == 1 else 's'}{where}"
        by_name = dict(zip(names, zip(parts, sizes, strict=True), strict=True))
        if set(by_name) == {ROLLOUT, TRAIN} and self._generators.issuperset(by_name[ROLLOUT][0].roles):
            (one, count), (other, rest) = by_name[ROLLOUT], by_name[TRAIN]
            where = f" (rollout on {one.group}, train on {other.group})" if mixed else ""
            if self._trainers_alone(other):
                return f"disaggregated: {count} rollout, {rest} train{where}"
        each = (
            f"{size} {', '.join(part.roles)}{f' on {part.group}' if mixed else ''}"
            for part, size in zip(parts, sizes, strict=True)
        )
        return f"{len(parts)} pools: {' | '.join(each)}"

    def _trainers_alone(self, part: Part) -> bool:
        return self._generators.isdisjoint(part.roles)

    def in_order(self, parts: Sequence[Part]) -> tuple[Part, ...]:
        """Roles of each pool in the graph's order, pools by their first: generators before trainers."""
        place = {role: number for number, role in enumerate(self.roles)}
        sorted_ = [Part(tuple(sorted(part.roles, key=place.__getitem__)), part.group) for part in parts]
        return tuple(sorted(sorted_, key=lambda part: (self._generators.isdisjoint(part.roles), place[part.roles[0]])))


def _actor(graph: Graph) -> str | None:
    """The trainer whose weights a generator takes; else the first trainer."""
    sources = [edge.source.split(".")[0] for edge in graph.edges if edge.kind is EdgeKind.WEIGHTS]
    trainers = [role.name for role in graph.roles if role.trainable]
    return next((name for name in sources if name in trainers), next(iter(trainers), None))


def group_size(group: NodeGroup) -> int:
    """Devices of a group."""
    return group.nodes * group.devices_per_node
