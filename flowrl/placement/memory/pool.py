"""Peak memory of every device pool, per phase of its work. Takes a graph and pools; gives Memory values that add up.

Phases: `load ROLE` · `start ROLE` (an engine against its own share of the device) · each op by its id, validation's
too · the steps of each weights edge (memory/sync.py). In each phase the roles of the pool that are not offloaded hold
what they hold, and engines that sleep leave a part behind. Devices that do the same are one entry:
`node0/0 .. node1/7`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil

from flowrl.graph.graph import EdgeKind, Graph, Kind, Op
from flowrl.graph.judges import reads_answers
from flowrl.graph.params import ForwardParams, ScoreParams, UpdateParams
from flowrl.machine.cluster import Cluster
from flowrl.machine.shape import ModelShape
from flowrl.placement.cost.denoiser import sampler_lines
from flowrl.placement.cost.ledger import Given, bytes_of, line
from flowrl.placement.cost.placed import Placed, group_of, placed_roles
from flowrl.placement.cost.workload import Workload
from flowrl.placement.memory import engine as engine_memory
from flowrl.placement.memory import training as training_memory
from flowrl.placement.memory.host import host_memory
from flowrl.placement.memory.sync import off_duty, sync_phases
from flowrl.placement.memory.training import Lines
from flowrl.placement.request import PlacementRequest
from flowrl.plan.plan import Decision, LedgerLine, Memory, Pool

HOLDS_LOGITS = ("sft",)
"""Losses whose plain loops keep all logits through the backward pass; those of policies let go of them."""


def memory(
    graph: Graph,
    pools: Sequence[Pool],
    shapes: Mapping[str, ModelShape],
    cluster: Cluster,
    *,
    request: PlacementRequest | None = None,
    decisions: Sequence[Decision] = (),
    work: Workload | None = None,
) -> tuple[Memory, ...]:
    """Peaks of all device pools in the order of the pools, and of a host's memory where roles are offloaded to it.

    `request` gives origins and assumptions, `decisions` the ids that origins name; `work` saves counting again.
    """
    request = request or PlacementRequest()
    everyone = [
        (pool, placed_roles(graph, pool, shapes, cluster, request, decisions)) for pool in pools if pool.devices
    ]
    work = work or Workload(graph, shapes, request)
    on_devices = (
        entry
        for pool, placed in everyone
        for entry in pool_memory(work, pool, placed, limit_bytes(pool, pools, cluster))
    )
    return (*on_devices, *host_memory(everyone, cluster, work))


def pool_memory(work: Workload, pool: Pool, placed: tuple[Placed, ...], limit: int) -> tuple[Memory, ...]:
    """The phases of one pool on its devices."""
    return tuple(_PoolMemory(work, pool, placed, limit).phases())


def limit_bytes(pool: Pool, pools: Sequence[Pool], cluster: Cluster) -> int:
    """Memory of one device. Slots of a CPU host share its memory: the slots in use on a node have equal parts."""
    group = group_of(pool, cluster)
    if not group.device.is_cpu:
        return group.device.memory_bytes
    node = pool.devices[0].rsplit("/", 1)[0]
    used = sum(device.rsplit("/", 1)[0] == node for other in pools for device in other.devices)
    return group.host_memory_bytes // max(1, used)


class _PoolMemory:
    """The phases of one pool."""

    def __init__(self, work: Workload, pool: Pool, placed: tuple[Placed, ...], limit: int) -> None:
        self.work, self.pool, self.placed, self.limit = work, pool, placed, limit
        self._held: dict[tuple[str, int], Lines] = {}
        self._asleep: dict[str, Lines] = {}
        self._stages: dict[str, int] = {}
        self._processes = self._overhead()

    def phases(self) -> Iterator[Memory]:
        for devices, stages in _alike(self.pool, self.placed):
            self._stages = stages
            for role in self.placed:
                yield from self._startup(role, devices)
            for op in self.work.graph.ops:
                role = next((each for each in self.placed if each.role.name == op.role), None)
                if role is not None:
                    yield self._entry(op.id, devices, role, self._at_work(role, op, stages[role.role.name]))
            yield from self._weights(devices)

    def _startup(self, role: Placed, devices: str) -> Iterator[Memory]:
        if role.shape is None:
            return
        if role.backend == "diffusers":
            yield self._entry(f"load {role.role.name}", devices, role, sampler_lines(role))
            return
        if not engine_memory.is_engine(role):
            stage = self._stages[role.role.name]
            lines = self._kept(("load", stage, *self._where(role)), lambda: training_memory.load_lines(role, stage))
            yield self._entry(f"load {role.role.name}", devices, role, lines)
            return
        generate = self._generate_op(role)
        if generate is not None and not role.device.is_cpu:
            lines = engine_memory.start_lines(role, self.work.lengths(generate))
            limit = engine_memory.engine_limit_bytes(role, self.limit)
            yield self._memory(f"start {role.role.name}", devices, lines, limit)

    def _weights(self, devices: str) -> Iterator[Memory]:
        """The steps of each weights edge that has an end in the pool."""
        by_name = {each.role.name: each for each in self.placed if each.shape is not None}
        for edge in self.work.graph.edges:
            if edge.kind is not EdgeKind.WEIGHTS:
                continue
            source, target = (by_name.get(end.split(".")[0]) for end in (edge.source, edge.target))
            ends = tuple(each for each in (source, target) if each is not None)
            for phase, active, lines in sync_phases(edge, source, target, self._resident):
                grown = self._grown(active) if active is target else []
                yield self._beside(phase, devices, ends, [*lines, *grown])

    def _at_work(self, role: Placed, op: Op, stage: int) -> Lines:
        return self._kept((op.id, stage, *self._where(role)), lambda: self._work_lines(role, op, stage))

    def _kept(self, key: tuple[object, ...], make: Callable[[], Lines]) -> Lines:
        """Lines by all that they depend on: the candidates of a search differ in one role or two."""
        found = self.work.lines.get(key)
        if found is None:
            found = self.work.lines[key] = make()
        return found

    def _where(self, role: Placed) -> tuple[object, ...]:
        layout = role.layout
        axes = (layout.dp, layout.tp, layout.pp, layout.cp, layout.ep, role.layout_origin, role.kv_origin)
        state = (role.offloaded, role.recompute, role.shared, role.group.name, self.limit)
        return (role.role.name, len(self.pool.devices), *axes, *state)

    def _work_lines(self, role: Placed, op: Op, stage: int) -> Lines:
        if role.shape is None:
            return self._resident(role)
        if role.backend == "diffusers":
            tokens = self.work.lengths(op).most
            inputs = {"a": training_memory.layer_activations(role), "T": Given(tokens, "tokens of one pass")}
            return [*sampler_lines(role), line("layer work", role.role.name, "bytes", "T*a", inputs)]
        if self.work.writes_text(op):
            return engine_memory.generate_lines(role, self.work.rows(op), self.work.lengths(op), self.limit)
        if engine_memory.is_engine(role) or reads_answers(op):
            return self._resident(role)
        tokens, micro_batches = self._micro_batch(role, op)
        if not isinstance(op.params, UpdateParams):
            return training_memory.forward_lines(role, tokens, stage)
        held = op.params.loss in HOLDS_LOGITS
        return training_memory.update_lines(role, tokens, micro_batches, stage, held=held)

    def _micro_batch(self, role: Placed, op: Op) -> tuple[Given, int]:
        """Tokens of one micro-batch on a device and how many there are: at least one whole sequence, at most all rows.
        cp cuts a sequence over its devices."""
        wanted, key = 16384, op.method
        if isinstance(op.params, UpdateParams | ForwardParams | ScoreParams):
            wanted = op.params.micro_batch_tokens
        longest, rows = self.work.lengths(op).most, engine_memory.rows_per_rank(role, self.work.rows(op))
        longest = -(-longest // role.layout.cp)
        origin = self.work.request.origin("roles", role.role.name, key, "micro_batch_tokens")
        if origin == "default":
            origin = self.work.request.origin("roles", role.role.name, "micro_batch_tokens")
        passes = self.work.passes(op)
        rows = rows if passes is None else ceil(rows * passes.value)
        whole = rows * longest
        if wanted < longest:
            return Given(longest, f"one longest sequence, over micro_batch_tokens {wanted:,} ({origin})"), rows
        if whole <= wanted:
            return Given(whole, f"all {rows:,} rows of a rank at their longest, under micro_batch_tokens {wanted:,}"), 1
        return Given(wanted, f"micro_batch_tokens, {origin}"), -(-whole // wanted)

    def _resident(self, role: Placed) -> Lines:
        """What the role holds between its ops: the same in every phase, so worked out once."""
        stage = self._stages.get(role.role.name, 0)
        found = self._held.get((role.role.name, stage))
        if found is None:
            key = ("held", stage, *self._where(role))
            found = self._held[role.role.name, stage] = self._kept(key, lambda: self._resident_lines(role))
        return found

    def _resident_lines(self, role: Placed) -> Lines:
        if role.backend == "diffusers":
            return sampler_lines(role)
        if role.shape is None:
            inputs = {"g": Given(role.role.engine.gpu_bytes or 0, f"roles.{role.role.name}.engine.gpu_bytes")}
            return [line("function", role.role.name, "bytes", "g", inputs)]
        generate = self._generate_op(role)
        if role.role.kind is Kind.GENERATOR or engine_memory.is_engine(role):
            lengths = self.work.lengths(generate) if generate is not None else None
            return engine_memory.resident_lines(role, lengths, self.limit)
        return training_memory.resident_lines(role, self._stages.get(role.role.name, 0))

    def _generate_op(self, role: Placed) -> Op | None:
        """The op that the engine's cache is made for: the one with the longest rows."""
        own = [op for op in self.work.graph.ops if op.role == role.role.name]
        return max(own, key=lambda op: self.work.lengths(op).most, default=None)

    def _entry(self, phase: str, devices: str, active: Placed, lines: Lines) -> Memory:
        return self._beside(phase, devices, (active,), [*lines, *self._grown(active)])

    def _beside(self, phase: str, devices: str, active: tuple[Placed, ...], lines: Lines) -> Memory:
        """A phase in which `active` hold `lines` and the other roles what they leave on the device."""
        others = [each for each in self.placed if each not in active]
        left = [entry for other in others for entry in self._left(other)]
        return self._memory(phase, devices, [*lines, *left, *self._processes], self.limit)

    def _left(self, other: Placed) -> Lines:
        """What the role leaves on the device between its ops; of one that sleeps the same on every device."""
        if not other.offloaded:
            return self._resident(other)
        if other.role.name not in self._asleep:
            self._asleep[other.role.name] = off_duty(other, self._resident)
        return self._asleep[other.role.name]

    def _grown(self, active: Placed) -> Lines:
        """Blocks that the allocator of a trainer that stays keeps after its update, when an engine has woken."""
        if not (active.offloaded and engine_memory.is_engine(active)) or active.device.is_cpu:
            return []
        known = active.profile.memory
        staying = [each for each in self.placed if each.role.trainable and not each.offloaded]
        found: Lines = []
        for role in staying if known.growth_share else ():
            updates = [op for op in self.work.graph.ops if op.role == role.role.name and op.method == "update"]
            stage = self._stages[role.role.name]
            work = max((bytes_of(self._at_work(role, op, stage)) for op in updates), default=0)
            inputs = {
                "k": Given(known.growth_share, f"share that allocators keep: {known.source}"),
                "u": Given(work - bytes_of(self._resident(role)), "what its update works with"),
            }
            found.append(line("blocks its allocator keeps", role.role.name, "bytes", "k*u", inputs))
        return found

    def _memory(self, phase: str, devices: str, lines: Lines, limit: int) -> Memory:
        return Memory(
            pool=self.pool.name,
            device=devices,
            phase=phase,
            peak_bytes=bytes_of(lines),
            limit_bytes=limit,
            lines=tuple(lines),
        )

    def _overhead(self) -> list[LedgerLine]:
        """Processes of the roles, but for engines on GPUs, whose own lines have theirs; and the reserve."""
        known = self.work.request.profile.memory
        is_cpu = any(each.device.is_cpu for each in self.placed)
        counted = [each for each in self.placed if is_cpu or not engine_memory.is_engine(each)]
        process = (
            Given(known.cpu_process_bytes, f"python with torch: {known.source}")
            if is_cpu
            else Given(known.context_bytes, f"CUDA context, cuBLAS, NCCL: {known.source}")
        )
        inputs = {
            "r": Given(known.reserve_share, f"fragmentation: {known.source}"),
            "M": Given(self.limit, f"catalogue {self.pool.device}"),
            "C": process,
            "roles": Given(len(counted), f"pool {self.pool.name}"),
        }
        processes = [line("processes", None, "bytes", "C*roles", inputs)] if counted else []
        return [*processes, line("reserve for fragmentation", None, "bytes", "r*M", inputs)]


def _alike(pool: Pool, placed: Sequence[Placed]) -> Iterator[tuple[str, dict[str, int]]]:
    """Devices that do the same, with the pipeline stage of each role there. Ranks of a role run tp fastest, then cp,
    dp and pp (Megatron Core's default order), so stages are contiguous blocks."""
    by_stages: dict[tuple[int, ...], list[str]] = {}
    count = len(pool.devices)
    if all(each.layout.pp == 1 for each in placed):
        by_stages[(0,) * len(placed)] = list(pool.devices)
    for index, device in enumerate(() if by_stages else pool.devices):
        key = tuple(index * each.layout.pp // count for each in placed)
        by_stages.setdefault(key, []).append(device)
    for key, devices in by_stages.items():
        name = devices[0] if len(devices) == 1 else f"{devices[0]} .. {devices[-1]}"
        yield name, {each.role.name: stage for each, stage in zip(placed, key, strict=True)}
