"""Weights edges on Ray: one shared buffer where both ends are on one host, objects between hosts.

One host: every trainer rank writes its shards into the host's buffer, every reader copies out of it. Several hosts:
each host of the trainer has a buffer; after a version is written the first rank of each exports the host's part as an
object, which Ray moves to each reading host once, and the readers lay the parts over each other. The driver sees names
and references only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from flowrl.backends.contract import TensorSpec
from flowrl.diag.diagnostic import FlowError, InternalError
from flowrl.plan.plan import StagePlan
from flowrl.program.program import ChannelKind, InstructionKind
from flowrl.runtime.checkpoint import kept_weights, weights_file
from flowrl.runtime.faults import placed
from flowrl.runtime.launchers.ray_actor import Outcome
from flowrl.runtime.weights import buffer_bytes


class Ask(Protocol):
    def __call__(self, references: Sequence[Any], ranks: Sequence[tuple[str, int | None]] = ()) -> list[Outcome]:
        """Waits for the outcomes of references and raises if one is an error; `ranks`: whose they are."""
        ...


@dataclass(frozen=True, slots=True)
class Ranks:
    """The actors of a role, in order of rank, and the node of each."""

    role: str
    actors: tuple[Any, ...]
    nodes: tuple[str, ...]

    def on(self, node: str) -> tuple[int, ...]:
        return tuple(rank for rank, at in enumerate(self.nodes) if at == node)


@dataclass(slots=True)
class _Edge:
    source: Ranks
    target: Ranks
    slots: int
    shared: bool
    """Whether all ranks of both ends are on one host."""
    manifest: tuple[TensorSpec, ...]
    path: str = ""
    """Where the source's first rank has its host's buffer open."""
    exports: dict[int, list[Any]] = field(default_factory=dict[int, list[Any]])
    """References to the parts of each version that may still be read; empty if `shared`."""


class WeightEdges:
    """Every weights edge of a stage, made ready when the ranks have started."""

    def __init__(self, stage: StagePlan, ranks: Mapping[str, Ranks], ask: Ask) -> None:
        self._edges: dict[str, _Edge] = {}
        self._names: list[str] = []
        for edge, (source, target) in _ends(stage).items():
            try:
                self._edges[edge] = self._open(stage, edge, ranks[source], ranks[target], ask)
            except FlowError as error:
                raise placed(error, next((e.span for e in stage.edges if e.id == edge), None)) from error

    def send(self, edge: str, version: int) -> list[Any]:
        """References to the outcomes that must come before the version counts as sent."""
        link = self._edges[edge]
        written = [actor.write_weights.remote(edge, version) for actor in link.source.actors]
        if link.shared:
            return written
        link.exports = {held: parts for held, parts in link.exports.items() if held > version - link.slots}
        outcomes: list[Any] = []
        link.exports[version] = []
        for node in dict.fromkeys(link.source.nodes):
            here = link.source.on(node)
            leader = link.source.actors[here[0]]
            waits = [written[rank] for rank in here]
            outcome, part = leader.export.options(num_returns=2).remote(edge, version, here, *waits)
            outcomes.append(outcome)
            link.exports[version].append(part)
        return written + outcomes

    def receive(self, edge: str, version: int) -> list[Any]:
        link = self._edges[edge]
        if not link.shared and version not in link.exports:
            raise InternalError(f"version {version} of `{edge}` was never sent or is gone")
        parts = [] if link.shared else link.exports[version]
        return [actor.read_weights.remote(edge, version, *parts) for actor in link.target.actors]

    def keep(self, folder: Path, versions: Mapping[str, Sequence[int]]) -> list[Any]:
        """References to the outcomes of writing versions that wait on edges to the checkpoint `folder`."""
        return [
            self._edges[edge]
            .source.actors[0]
            .keep_weights.remote(
                edge, version, weights_file(folder, edge, version), *self._edges[edge].exports.get(version, ())
            )
            for edge, waiting in versions.items()
            for version in waiting
        ]

    def restore(self, folder: Path, ask: Ask) -> None:
        """The versions that waited on edges when the checkpoint was made."""
        asked: list[Any] = []
        for edge, link in self._edges.items():
            for version, file in kept_weights(folder, edge):
                leader, writers = link.source.actors[0], len(link.source.actors)
                put = leader.put_weights.options(num_returns=2)
                outcome, whole = put.remote(edge, version, file, writers, not link.shared)
                link.exports |= {} if link.shared else {version: [whole]}
                asked.append(outcome)
        ask(asked)

    def _open(self, stage: StagePlan, edge: str, source: Ranks, target: Ranks, ask: Ask) -> _Edge:
        manifest = ask([source.actors[0].manifest.remote(edge)])[0].value
        hosts = list(dict.fromkeys(source.nodes))
        link = _Edge(source, target, _slots(stage, edge), set(source.nodes) | set(target.nodes) == {hosts[0]}, manifest)
        leaders = [source.actors[source.on(node)[0]] for node in hosts]
        sizes = (buffer_bytes(manifest), link.slots, len(source.actors))
        made = ask([leader.create_buffer.remote(edge, *sizes) for leader in leaders])
        names = {node: outcome.value for node, outcome in zip(hosts, made, strict=True)}
        self._names += names.values()
        opened = [
            actor.open_buffer.remote(edge, names[node], manifest)
            for actor, node in zip(source.actors, source.nodes, strict=True)
        ]
        opened += [
            actor.open_buffer.remote(edge, names[node] if link.shared else None, manifest)
            for actor, node in zip(target.actors, target.nodes, strict=True)
        ]
        ask(opened)
        link.path = ask([leader.unlink_buffer.remote(edge) for leader in leaders])[0].value
        return link

    def join(self, ranks: Ranks, ask: Ask) -> None:
        """The role's ranks were made anew: open the buffers of the edges that enter it, whose names are gone, as the
        trainer's first rank has them. Raises RankLostError if one has just died."""
        for edge, link in self._edges.items():
            if link.target.role != ranks.role:
                continue
            link.target = ranks
            path = link.path if link.shared else None
            opening = [actor.open_buffer.remote(edge, path, link.manifest) for actor in ranks.actors]
            ask(opening, [(ranks.role, rank) for rank in range(len(opening))])

    def close(self) -> None:
        """Names are gone since every process opened its buffer, unless a rank died while it did."""
        for name in self._names:
            Path(name).unlink(missing_ok=True)
        self._edges.clear()


def _ends(stage: StagePlan) -> dict[str, tuple[str, str]]:
    """Source and target role of each weights edge that the program sends on."""
    ends: dict[str, dict[InstructionKind, str]] = {}
    for instruction in stage.programs.instructions:
        if instruction.edge is not None and instruction.kind in _KINDS:
            ends.setdefault(instruction.edge, {})[instruction.kind] = instruction.role
    return {edge: (roles[_KINDS[0]], roles[_KINDS[1]]) for edge, roles in ends.items() if len(roles) == len(_KINDS)}


_KINDS = (InstructionKind.SEND_WEIGHTS, InstructionKind.RECEIVE_WEIGHTS)


def _slots(stage: StagePlan, edge: str) -> int:
    """One more than versions may wait on the edge: none is overwritten before it is read."""
    channels = stage.programs.channels
    return max(1, sum(c.capacity for c in channels if c.kind is ChannelKind.WEIGHTS and c.edge == edge)) + 1
