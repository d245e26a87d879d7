"""The record store: what each op has made in each step, until its last reader is done. Holds handles, never rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np
from msgspec import structs

from flowrl.diag.diagnostic import InternalError
from flowrl.execution.contract import Firing
from flowrl.graph.graph import Graph, Input, Kind, Op
from flowrl.program.program import Instruction, InstructionKind, Program
from flowrl.runtime.launchers.contract import BoundInput, Part, Record
from flowrl.runtime.rows import generators_of_steps, sample_spaces

READS = (InstructionKind.RUN, InstructionKind.OPEN, InstructionKind.TAKE)
"""Instructions that read their op's inputs. A take keeps them for who looks at single rows."""
IsIdle = Callable[[Instruction, int], bool]


class RecordStore:
    """Records by op and step. A record is dropped when every firing of the step that reads it has completed."""

    def __init__(self, graph: Graph, program: Program, is_idle: IsIdle, carried: Collection[str] = ()) -> None:
        """`carried`: calls of generate whose rows may belong to prompts of earlier steps."""
        self._graph = graph
        self._is_idle = is_idle
        self._spaces = sample_spaces(graph)
        self._played = generators_of_steps(graph)
        self._resets = {op.id for op in graph.ops if op.method == "reset" and graph.role(op.role).kind is Kind.ENV}
        self._reading = tuple(i for i in program.instructions if i.kind in READS and i.op is not None)
        self._sources = {op.id: {h for i in op.inputs if (h := self._holder(i, op)) is not None} for op in graph.ops}
        self._parts: dict[tuple[str, int], tuple[Part, ...]] = {}
        self._left: dict[tuple[str, int], int] = {}
        self._prompts: dict[tuple[str, int], list[int]] = {}
        self._carried = frozenset(carried)
        self._kept: dict[str, tuple[Part, ...]] = {
            source: () for op in graph.ops if self._spaces[op.id] in self._carried for source in self._crossing(op)
        }
        """Rows by prompt that are kept for later steps."""

    def __len__(self) -> int:
        return len(self._parts)

    @property
    def nbytes(self) -> int:
        """Bytes of all rows that are held now, wherever they lie."""
        return sum(part.nbytes for parts in self._parts.values() for part in parts)

    def space(self, op: Op) -> str | None:
        """The generate op whose samples `op` works on; None for prompt rows."""
        return self._spaces[op.id]

    def inputs(self, op: Op, step: int) -> tuple[BoundInput, ...]:
        """The bound inputs of an op in a step. An optional input without a record is left out."""
        bound: list[BoundInput] = []
        for item in op.inputs:
            source = self._holder(item, op)
            if source is None or (source, step) not in self._parts:
                if item.optional:
                    continue
                raise InternalError(f"step {step}: `{op.id}` reads `{item.slot}`, and `{source}` has made nothing")
            crosses = source not in self._resets and self._spaces[source] != self._spaces[op.id]
            kept = self._kept[source] if crosses and self._spaces[op.id] in self._carried else None
            record = Record(source, step, kept or self._parts[source, step])
            bound.append(BoundInput(item.slot, item.field, record, by_prompt=crosses))
        return tuple(bound)

    def inputs_so_far(self, op: Op, step: int) -> tuple[BoundInput, ...]:
        """As `inputs`, without those that are not there yet."""
        there = tuple(i for i in op.inputs if i.source is not None and (i.source, step) in self._parts)
        return self.inputs(structs.replace(op, inputs=there), step)

    def prompt_ids(self, op: Op, step: int) -> list[int]:
        """All prompts of the step that `op` works on, ascending: those its data set has given, or those that a session
        which goes on has."""
        space = self._spaces[op.id]
        if space in self._carried:
            parts = self._parts.get((space, step), ())
            return np.unique(np.concatenate([part.prompt_ids for part in parts])).tolist() if parts else []
        data = self.data_of(op)
        return self._prompts[data.id, step]

    def add(self, firing: Firing, parts: Sequence[Part]) -> None:
        """Keep what a firing made, if anything in the step reads it."""
        op, step = firing.instruction.op, firing.step
        if op is None or not parts:
            return
        key = (op, step)
        if self._graph.role(firing.instruction.role).kind is Kind.DATA:
            given = {i for part in parts for i in part.prompt_ids.tolist()}
            self._prompts[key] = sorted(given.union(self._prompts.get(key, ())))
        if op in self._kept:
            self._kept[op] += tuple(parts)
        if key not in self._left:
            self._left[key] = self._readers(op, step)
        if self._left[key]:
            self._parts[key] = self._parts.get(key, ()) + tuple(parts)

    def done(self, firing: Firing) -> None:
        """A reader has completed: drop what nothing else will read."""
        if firing.instruction.op is None:
            return
        for source in self._sources[firing.instruction.op]:
            key = (source, firing.step)
            if key in self._left:
                self._left[key] -= 1
                if self._left[key] == 0:
                    self._parts.pop(key, None)

    def step_done(self, step: int) -> None:
        """Forget the counts of a step that is over."""
        for key in [key for key in self._left if key[1] <= step]:
            del self._left[key]
            self._parts.pop(key, None)
            self._prompts.pop(key, None)

    def keep(self, prompts: Collection[int]) -> None:
        """Of rows that are kept for later steps only those of `prompts` will be read."""
        wanted = np.asarray(sorted(prompts), dtype=np.int64)
        self._kept = {
            source: tuple(part for part in parts if np.isin(part.prompt_ids, wanted).any())
            for source, parts in self._kept.items()
        }

    def _holder(self, item: Input, op: Op) -> str | None:
        """The op whose rows have the column: of an environment's step the generator that the reader works with."""
        played = self._played.get(item.source or "", ())
        if not played:
            return item.source
        return self._spaces[op.id] if self._spaces[op.id] in played else played[0]

    def _crossing(self, op: Op) -> list[str]:
        """What it reads by prompt."""
        return [i.source for i in op.inputs if i.source is not None and self._spaces[i.source] != self._spaces[op.id]]

    def _readers(self, op: str, step: int) -> int:
        return sum(
            1 for i in self._reading if i.op is not None and op in self._sources[i.op] and not self._is_idle(i, step)
        )

    def data_of(self, op: Op) -> Op:
        """The data op that an op's rows come from: up the inputs, the op's own sample space first."""
        while self._graph.role(op.role).kind is not Kind.DATA:
            sources = [self._graph.op(holder) for i in op.inputs if (holder := self._holder(i, op)) is not None]
            if not sources:
                return op
            own = [s for s in sources if self._spaces[s.id] == self._spaces[op.id]]
            op = (own or sources)[0]
        return op
