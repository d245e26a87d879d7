"""What one role holds on a device: between ops, at work, while it is loaded and while weights come and go.

Takes a Placed role and the workload; gives ledger lines, kept by all that they depend on for the candidates of one
search. Knows no other role: pool.py adds up what several hold at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from flowrl.graph.graph import Kind, Op
from flowrl.graph.judges import reads_answers
from flowrl.graph.params import UpdateParams
from flowrl.placement.cost.denoiser import sampler_lines
from flowrl.placement.cost.ledger import Given, are_whole, bytes_of, line
from flowrl.placement.cost.placed import Placed
from flowrl.placement.cost.workload import Workload
from flowrl.placement.memory import engine as engine_memory
from flowrl.placement.memory import host as host_memory
from flowrl.placement.memory import training as training_memory
from flowrl.placement.memory.micro_batch import micro_batch
from flowrl.placement.memory.stages import in_flight, stages_alike
from flowrl.placement.memory.training import Lines
from flowrl.plan.plan import LedgerLine

HOLDS_LOGITS = ("sft",)
"""Losses whose plain loops keep all logits through the backward pass; those of policies let go of them."""

Beside = tuple[Mapping[str, int], int]
"""Bytes by op, and those that the allocator keeps."""


class RoleMemory:
    """One role of a pool whose devices have `limit` bytes each."""

    def __init__(self, work: Workload, placed: Placed, limit: int) -> None:
        self.work, self.placed, self.limit = work, placed, limit
        self.name, self.offloaded, self.pp = placed.role.name, placed.offloaded, placed.layout.pp
        self.has_model, on_cpu = placed.shape is not None, placed.device.is_cpu
        self.is_engine = engine_memory.is_engine(placed)
        self.wakes = self.offloaded and self.is_engine and not on_cpu
        self.staged = self.wakes and placed.profile.engine_memory(placed.backend).staged
        self._lines = work.lines.setdefault(self._where(), {})
        self.alike = self._alike()
        """For each stage the first that holds the same: of backends without stages, and of numbers."""
        self._busy: tuple[int, ...] | None = None

    def load(self, stage: int) -> Lines | None:
        """While it is loaded; None for what loads no model, and for engines, which start against their own share."""
        if self.placed.backend == "diffusers":
            return sampler_lines(self.placed)
        if not self.has_model or self.is_engine:
            return None
        return self._kept(
            ("load", self.alike[stage]),
            lambda: training_memory.load_lines(self.placed, stage, resident=self.resident(stage)),
        )

    def start(self) -> tuple[Lines, int] | None:
        """What an engine on a GPU must find room for when it starts, and in how much."""
        longest = self._longest() if self.is_engine and self.has_model and not self.placed.device.is_cpu else None
        if longest is None:
            return None
        lengths = self.work.lengths(longest)
        lines = self._kept(("start",), lambda: engine_memory.start_lines(self.placed, lengths))
        return lines, engine_memory.engine_limit_bytes(self.placed, self.limit)

    def at_work(self, op: Op, stage: int) -> Lines:
        size = self.placed.micro_batch_tokens
        if isinstance(op.params, UpdateParams):
            key = (op.id, self.busy[stage], self.placed.recompute, size)
            return self._kept(key, lambda: self._work_lines(op, stage))
        return self._kept((op.id, self.alike[stage], size), lambda: self._work_lines(op, stage))

    def beside(self, ops: Sequence[Op]) -> Mapping[int, Beside] | None:
        """By stages that differ, what `ops` hold beside `resident`, and `grown`, in bytes: for numbers only. With
        Megatron Core it is the same for any number of ranks that have as many tokens each, so it is kept for all of
        them. None for others."""
        placed, layout = self.placed, self.placed.layout
        if placed.backend != "megatron" or not all(self._takes_passes(op) for op in ops):
            return None
        cut = (layout.tp, layout.pp, layout.cp, layout.ep, layout.ep <= layout.dp * layout.cp)
        batches = [self._micro_batch(op) for op in ops]
        key = ("beside", cut, placed.recompute, tuple([(size.value, min(count, self.pp)) for size, count in batches]))
        found: Mapping[int, Beside] | None = placed.kept.get(key)
        if found is None:
            calm = [op for op in ops if not isinstance(op.params, UpdateParams)]
            same = {stage: self._held_beside(calm, stage) for stage in dict.fromkeys(self.alike)}
            stages = dict.fromkeys(self.busy)
            found = {stage: self._beside(ops, stage, same[self.alike[stage]]) for stage in stages}
            placed.kept[key] = found
        return found

    def _held_beside(self, ops: Sequence[Op], stage: int) -> dict[str, int]:
        return {op.id: bytes_of(self._pass_lines(op, stage, [])) for op in ops}

    def _beside(self, ops: Sequence[Op], stage: int, same: Mapping[str, int]) -> Beside:
        held = {**same, **self._held_beside([op for op in ops if op.id not in same], stage)}
        used, known = [held[op.id] for op in self._updates()], self.placed.profile.memory
        if not used or not self.placed.role.trainable or not known.growth_share:
            return held, 0
        return held, bytes_of([self._blocks_line(max(used), known.growth_share, known.source)])

    def resident(self, stage: int) -> Lines:
        """Between its ops, if it stays."""
        return self._kept(("held", self.alike[stage]), lambda: self._resident_lines(stage))

    def left(self, stage: int) -> Lines:
        """On the device while another role works there; of one that sleeps the same at every stage."""
        if not self.offloaded:
            return self.resident(stage)
        return self._kept(("asleep",), lambda: engine_memory.asleep_lines(self.placed))

    def grown(self, stage: int, work: Mapping[str, int] | None = None) -> Lines:
        """Blocks that the allocator of a trainer that stays keeps after its update, when an engine has woken. `work`:
        bytes of its ops at that stage, if the caller has them."""
        known = self.placed.profile.memory
        if not self.placed.role.trainable or self.offloaded or not known.growth_share:
            return []
        key = ("grown", self.busy[stage], self.placed.recompute, self.placed.micro_batch_tokens)
        return self._kept(key, lambda: [self._grown_line(stage, work, known.growth_share, known.source)])

    def sent(self) -> Lines:
        """Beside what it holds while its weights are sent."""
        return self._kept(("sent",), lambda: training_memory.export_lines(self.placed, []))

    def received(self) -> Lines:
        """Beside what it holds while new weights come in."""
        return self._kept(("received",), lambda: engine_memory.receive_lines(self.placed, []))

    def awake(self) -> Lines:
        """Of an engine whose weights are awake and whose cache is not."""
        return self._kept(("awake",), lambda: engine_memory.awake_lines(self.placed))

    def off_device(self) -> Lines:
        """What is copied to the host when it leaves its devices."""
        joined = self.placed.role.shares in {entry.role for entry in self.placed.pool.roles}
        return self._kept(("off", joined), lambda: host_memory.off_device_lines(self.placed, self.resident(0)))

    def _kept(self, key: tuple[object, ...], make: Callable[[], Lines]) -> Lines:
        """Lines by all that they depend on: the candidates of a search differ in one role or two."""
        found = self._lines.get(key)
        if found is None:
            found = self._lines[key] = make()
        return found

    def _where(self) -> tuple[object, ...]:
        """What lines depend on beside their moment. What an engine holds on a GPU is the same for any number of
        engines."""
        placed, layout, whole = self.placed, self.placed.layout, are_whole()
        held = (
            self.name,
            placed.shared,
            placed.group.name,
            self.limit,
            layout.tp,
            layout.pp,
            layout.ep,
            placed.memory_share,
        )
        if self.is_engine and not whole and not placed.device.is_cpu:
            return held
        return (*held, layout.dp, layout.cp, placed.count, placed.layout_origin, placed.kv_origin, whole)

    def _alike(self) -> tuple[int, ...]:
        if self.pp == 1 or self.placed.backend != "megatron":
            return (0,) * self.pp
        return tuple(range(self.pp)) if are_whole() else stages_alike(self.placed.model, self.pp)

    @property
    def busy(self) -> tuple[int, ...]:
        """For each stage the first that holds the same in an update: it has as many micro-batches in flight, too."""
        if self._busy is None:
            self._busy = self.alike
            if self.pp > 1 and self.placed.backend == "megatron":
                most = max([1, *(self._micro_batch(op)[1] for op in self._updates())])
                self._busy = in_flight(self.alike, min(most, self.pp))
        return self._busy

    def _updates(self) -> list[Op]:
        found: list[Op] | None = self.placed.kept.get("updates")
        if found is None:
            ops = [op for op in self.work.graph.ops if op.role == self.name and op.method == "update"]
            found = self.placed.kept["updates"] = ops
        return found

    def _grown_line(self, stage: int, work: Mapping[str, int] | None, share: float, source: str) -> LedgerLine:
        most = 0
        for op in self._updates():
            most = max(most, bytes_of(self.at_work(op, stage)) if work is None else work[op.id])
        return self._blocks_line(most - bytes_of(self.resident(stage)), share, source)

    def _blocks_line(self, used: int, share: float, source: str) -> LedgerLine:
        kept = self.placed.kept
        if "growth" not in kept:
            kept["growth"] = Given(share, f"share that allocators keep: {source}")
        inputs = {"k": kept["growth"], "u": Given(used, "what its update works with")}
        return line("blocks its allocator keeps", self.name, "bytes", "k*u", inputs)

    def _work_lines(self, op: Op, stage: int) -> Lines:
        placed = self.placed
        if placed.shape is None:
            return self.resident(stage)
        if placed.backend == "diffusers":
            tokens = self.work.lengths(op).most
            inputs = {"a": training_memory.layer_activations(placed), "T": Given(tokens, "tokens of one pass")}
            return [*sampler_lines(placed), line("layer work", self.name, "bytes", "T*a", inputs)]
        if self.work.writes_text(op):
            return engine_memory.generate_lines(placed, self.work.rows(op), self.work.lengths(op), self.limit)
        if self.is_engine or reads_answers(op):
            return self.resident(stage)
        return self._pass_lines(op, stage, self.resident(stage))

    def _takes_passes(self, op: Op) -> bool:
        """Whether it computes with micro-batches in the op: it writes nothing, and reads no answers."""
        kept, key = self.placed.kept, ("passes", op.id)
        if key not in kept:
            kept[key] = self.placed.shape is not None and not self.work.writes_text(op) and not reads_answers(op)
        found: bool = kept[key]
        return found

    def _pass_lines(self, op: Op, stage: int, resident: Lines) -> Lines:
        placed = self.placed
        tokens, micro_batches = self._micro_batch(op)
        if not isinstance(op.params, UpdateParams):
            return training_memory.forward_lines(placed, tokens, stage, resident=resident)
        held = op.params.loss in HOLDS_LOGITS
        return training_memory.update_lines(placed, tokens, micro_batches, stage, held=held, resident=resident)

    def _micro_batch(self, op: Op) -> tuple[Given, int]:
        """Tokens of one micro-batch on a device and how many there are: at least one whole sequence, at most all rows.
        cp cuts a sequence over its devices."""
        placed, layout = self.placed, self.placed.layout
        key = ("micro-batch", op.id, layout.dp, layout.cp, placed.micro_batch_tokens)
        found: tuple[Given, int] | None = placed.kept.get(key)
        if found is None:
            found = placed.kept[key] = micro_batch(self.work, placed, op)
        return found

    def _resident_lines(self, stage: int) -> Lines:
        placed = self.placed
        if placed.backend == "diffusers":
            return sampler_lines(placed)
        if placed.shape is None:
            inputs = {"g": Given(placed.role.engine.gpu_bytes or 0, f"roles.{self.name}.engine.gpu_bytes")}
            return [line("function", self.name, "bytes", "g", inputs)]
        if placed.role.kind is Kind.GENERATOR or self.is_engine:
            longest = self._longest()
            lengths = self.work.lengths(longest) if longest is not None else None
            return engine_memory.resident_lines(placed, lengths, self.limit)
        return training_memory.resident_lines(placed, stage)

    def _longest(self) -> Op | None:
        """The op that the engine's cache is made for: the one with the longest rows."""
        kept = self.placed.kept
        if "longest" not in kept:
            own = [op for op in self.work.graph.ops if op.role == self.name]
            kept["longest"] = max(own, key=lambda op: self.work.lengths(op).most, default=None)
        found: Op | None = kept["longest"]
        return found
