"""Memory of the hosts of GPUs, per phase. One entry a phase, for the node that holds most.

Phases: `loading` (weights that ranks read before they are cut) · `offloaded state` (what is off its devices, all of it,
and the rows of a step on the node of the controller) · `saving ROLE`. Every phase has the processes of the node's ranks
and a reserve. On a CPU devices are the host: pool.py counts them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from flowrl.graph.graph import Kind
from flowrl.graph.params import UpdateParams
from flowrl.machine.cluster import Cluster, NodeGroup
from flowrl.machine.memory import MemoryConstants
from flowrl.placement.cost.denoiser import sampler_lines
from flowrl.placement.cost.ledger import Given, bytes_of, line
from flowrl.placement.cost.placed import HOST, Placed, group_of, model_inputs
from flowrl.placement.cost.workload import Workload
from flowrl.placement.memory import engine as engine_memory
from flowrl.placement.memory import training as training_memory
from flowrl.placement.memory.micro_batch import micro_batch
from flowrl.placement.memory.training import Lines
from flowrl.placement.memory.weights import weights_line
from flowrl.plan.plan import LedgerLine, Memory, Pool

Everyone = Sequence[tuple[Pool, tuple[Placed, ...]]]

ROW_TOKEN_BYTES = 32
"""Of one token of a row at the controller: its id, masks, log-probs of three policies, advantage, value, return."""


def off_device_lines(placed: Placed, resident: Lines | None = None) -> Lines:
    """What of a role is copied to the host when it leaves a device: its state, and of an engine the weights alone (the
    KV cache is thrown away; vLLM, sleep mode level 1) or nothing (level 2). Weights that a trainer of the pool has are
    there once. `resident`: what it holds between its ops, if the caller has it."""
    if placed.shape is None or placed.role.shares in {entry.role for entry in placed.pool.roles}:
        return []
    if placed.backend == "diffusers":
        return sampler_lines(placed)
    if engine_memory.is_engine(placed):
        return weights_line(placed) if placed.role.engine.sleep_level == 1 else []
    if placed.role.kind is Kind.GENERATOR:
        return engine_memory.idle_lines(placed)
    return training_memory.resident_lines(placed) if resident is None else resident


def moved_activations(placed: Placed, work: Workload) -> Lines:
    """Of one device, what the update of a role that moves most of them keeps on the host."""
    if not placed.role.engine.activation_offload:
        return []
    updates = [op for op in work.graph.ops if op.role == placed.role.name and isinstance(op.params, UpdateParams)]
    cuts = [micro_batch(work, placed, op) for op in updates]
    found = [training_memory.activations_on_host(placed, tokens, count) for tokens, count in cuts]
    return max(found, key=bytes_of, default=Lines())


def host_memory(everyone: Everyone, cluster: Cluster, work: Workload | None = None) -> tuple[Memory, ...]:
    """The fullest node in each phase; nothing without devices that have a host beside them."""
    nodes = _Nodes(everyone, cluster, work)
    return tuple(nodes.phases()) if nodes.limits else ()


@dataclass(frozen=True, slots=True)
class Standing:
    """One sort of node, and what is on it whatever the choices of roles: all in bytes."""

    devices: Mapping[str, int]
    """Of each pool that has some there."""
    always: int
    """Processes, reserve, and on the node of the controller the rows of a step."""
    loading: int
    """Beside processes and reserve, while weights are read."""
    saving: Mapping[str, int]
    """By trainer, what its checkpoint takes beside all else if its state is not on the host already."""
    limit: int


def standing(everyone: Everyone, cluster: Cluster, work: Workload) -> tuple[Standing, ...]:
    """Of the nodes of all device pools, whose roles may be in any of their choices."""
    nodes = _Nodes(everyone, cluster, work)
    return tuple(nodes.standing(node) for node in nodes.limits)


def least_of_controller(group: NodeGroup, work: Workload) -> int:
    """Bytes that the controller's node has at least, if it is one of this group: the reserve and the rows of a step."""
    return bytes_of([_reserve(work.request.profile.memory, group.host_memory_bytes), *_rows(work)])


class _Nodes:
    """The nodes of all device pools, one of each sort, and what stands on them."""

    def __init__(self, everyone: Everyone, cluster: Cluster, work: Workload | None) -> None:
        self.everyone, self.work = [(pool, placed) for pool, placed in everyone if not _on_cpu(placed)], work
        self.here = {pool.name: _by_node(pool.devices) for pool, _ in self.everyone}
        self.limits: dict[str, int] = {}
        for pool, _ in self.everyone:
            limit = group_of(pool, cluster).host_memory_bytes
            self.limits |= dict.fromkeys(self.here[pool.name], limit)
        self._states: dict[str, list[tuple[str, Given]]] = {}
        self.first = next(iter(self.limits), "")
        alike = {
            (*(self.here[p.name][node] for p, _ in self.everyone), each, node == self.first): node
            for node, each in reversed(self.limits.items())
        }
        self.limits = {node: self.limits[node] for node in reversed(alike.values())}

    def phases(self) -> Iterator[Memory]:
        yield self._fullest("loading", {node: self._loading(node) for node in self.limits})
        away = {node: self._away(node) for node in self.limits}
        yield self._fullest("offloaded state", away)
        for pool, placed in self.everyone:
            for role in placed:
                if role.role.trainable and role.shape is not None:
                    held = (node for node in self.limits if self.here[pool.name][node])
                    saving = {node: [*away[node], *self._saving(node, pool, role)] for node in held}
                    yield self._fullest(f"saving {role.role.name}", saving)

    def _fullest(self, phase: str, lines: Mapping[str, Lines]) -> Memory:
        whole = {node: [*own, *self._base(node)] for node, own in lines.items()}
        node = max(whole, key=lambda name: bytes_of(whole[name]) / self.limits[name])
        return Memory(
            pool=HOST,
            device=node,
            phase=phase,
            peak_bytes=bytes_of(whole[node]),
            limit_bytes=self.limits[node],
            lines=tuple(whole[node]),
        )

    def _base(self, node: str) -> Lines:
        """Processes of ranks, and what the operating system and the object store need."""
        placed = [each for _, roles in self.everyone for each in roles]
        known = placed[0].profile.memory
        ranks = sum(self.here[pool.name][node] * len(roles) for pool, roles in self.everyone)
        inputs = {
            "h": Given(known.host_process_bytes, f"a rank's process: {known.source}"),
            "ranks": Given(ranks, "ranks on this node"),
        }
        reserve = _reserve(known, self.limits[node])
        return [line("processes", None, "bytes", "h*ranks", inputs), reserve]

    def _on(self, node: str) -> Iterator[tuple[Pool, Placed, int]]:
        """Roles with a model that have devices there, and how many."""
        for pool, roles in self.everyone:
            for each in roles:
                if each.shape is not None and self.here[pool.name][node]:
                    yield pool, each, self.here[pool.name][node]

    def _loading(self, node: str) -> Lines:
        """One role after another: the largest. Where one rank reads all and sends it, its node has the whole model in
        float32; else each rank has its part of it. Engines read tensor by tensor from mapped files."""
        found = [_read(each, devices) for _, each, devices in self._on(node) if each.role.kind is not Kind.GENERATOR]
        return [max(found, key=lambda entry: entry.value)] if found else []

    def _away(self, node: str) -> Lines:
        """State that has left its devices, and what the flow keeps on the host whether its role is at work or not."""
        lines: Lines = []
        for pool, each, devices in self._on(node):
            for what, state in self._moved(each):
                count = Given(devices, f"devices of pool {pool.name} on this node")
                lines.append(line(what, each.role.name, "bytes", "s*d", {"s": state, "d": count}))
        return [*lines, *self._rows_on(node)]

    def _rows_on(self, node: str) -> Lines:
        return _rows(self.work) if self.work is not None and node == self.first else []

    def _moved(self, placed: Placed) -> list[tuple[str, Given]]:
        """Of one device of a role; the same on each node."""
        found = self._states.get(placed.role.name)
        if found is None:
            away = off_device_lines(placed) if placed.offloaded else []
            parts = {
                "offloaded state": away,
                "state kept on the host": training_memory.host_lines(placed),
                "activations": [] if self.work is None else moved_activations(placed, self.work),
            }
            found = [(what, _sum(lines)) for what, lines in parts.items() if bytes_of(lines)]
            self._states[placed.role.name] = found
        return found

    def _saving(self, node: str, pool: Pool, placed: Placed) -> Lines:
        """A checkpoint: each rank copies its part of float32 weights and moments to the host, unless it is there."""
        return [] if placed.offloaded else [self._checkpoint(node, pool, placed)]

    def _checkpoint(self, node: str, pool: Pool, placed: Placed) -> LedgerLine:
        inputs = {
            **model_inputs(placed),
            "d": Given(self.here[pool.name][node], f"devices of pool {pool.name} on this node"),
            "all": Given(len(pool.devices), f"devices of pool {pool.name}"),
        }
        trained = "A" if placed.adapter else "P"
        return line("checkpoint", placed.role.name, "bytes", f"12*{trained}*d/all", inputs)

    def standing(self, node: str) -> Standing:
        """See `standing`."""
        trained = [(pool, each) for pool, each, _ in self._on(node) if each.role.trainable]
        return Standing(
            devices={name: counts[node] for name, counts in self.here.items() if counts[node]},
            always=bytes_of([*self._base(node), *self._rows_on(node)]),
            loading=bytes_of([*self._base(node), *self._loading(node)]),
            saving={each.role.name: bytes_of([self._checkpoint(node, pool, each)]) for pool, each in trained},
            limit=self.limits[node],
        )


def _rows(work: Workload) -> Lines:
    """Rows of a step at the controller, padded to the longest; images are not counted."""
    writing = [op for op in work.graph.ops if work.writes_text(op)]
    made = [(work.rows(op).count * work.lengths(op).most, op) for op in writing]
    tokens, op = max(made, key=lambda m: m[0], default=(0, None))
    if op is None:
        return []
    inputs = {
        "T": Given(tokens, f"{work.rows(op).count:,} rows of at most {work.lengths(op).most:,} tokens"),
        "e": Given(ROW_TOKEN_BYTES, "of a token: id, masks, log-probs, advantage, value, return"),
    }
    return [line("rows of a step", None, "bytes", "T*e", inputs)]


def _reserve(known: MemoryConstants, limit: int) -> LedgerLine:
    inputs = {
        "q": Given(known.host_reserve_share, f"operating system, file cache, object store: {known.source}"),
        "M": Given(limit, "memory of the node"),
    }
    return line("reserve", None, "bytes", "q*M", inputs)


def _on_cpu(placed: Sequence[Placed]) -> bool:
    return any(each.device.is_cpu for each in placed)


@lru_cache(maxsize=1024)
def _by_node(devices: tuple[str, ...]) -> Counter[str]:
    return Counter(map(_node, devices))


def _node(device: str) -> str:
    return device.rsplit("/", 1)[0]


def _read(placed: Placed, devices: int) -> LedgerLine:
    inputs = {
        **model_inputs(placed),
        "n": Given(devices, f"devices of pool {placed.pool.name} on this node"),
        "all": Given(len(placed.pool.devices), f"devices of pool {placed.pool.name}"),
    }
    bytes_each = "4" if placed.role.trainable and not placed.adapter else "w"
    if placed.role.trainable and placed.role.engine.load == "broadcast":
        return line("weights being read", placed.role.name, "bytes", f"{bytes_each}*P", inputs)
    return line("weights being read", placed.role.name, "bytes", f"{bytes_each}*P*n/all", inputs)


def _sum(lines: Lines) -> Given:
    return Given(bytes_of(lines), " + ".join(f"{each.what} ({each.formula})" for each in lines))
