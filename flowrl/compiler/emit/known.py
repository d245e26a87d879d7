"""Which ops may take part in a session: what a generate call that is handed on in parts asks of them and of the pools.

Takes the graph and the streams of a program whose ops run whole; gives answers, and for updates the reason why they
must wait. Cuts nothing: sessions.py does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

from flowrl.graph.algorithms import reachable
from flowrl.graph.graph import EdgeKind, Graph, Kind, Op
from flowrl.graph.interactions import interactions
from flowrl.graph.params import GenerateParams, UpdateParams
from flowrl.graph.rows import rows_of
from flowrl.graph.types import Granularity
from flowrl.program.program import MOVES, Instruction, InstructionKind, Rows, Stream


class Known:
    """A program whose ops run whole, as far as cutting it depends on it."""

    def __init__(self, graph: Graph, streams: Sequence[Stream], reads_on_devices: bool) -> None:
        self.graph, self.reads_on_devices = graph, reads_on_devices
        self.runs: dict[str, list[Instruction]] = defaultdict(list)
        self.lane_of: dict[str, tuple[int, int]] = {}
        for at, stream in enumerate(streams):
            for place, lane in enumerate(stream.lanes):
                self.lane_of |= {i.id: (at, place) for i in lane}
                for i in lane:
                    self.runs[i.op or ""].append(i)
        self.moving = {i.role for stream in streams for i in stream.instructions if i.kind in MOVES}
        self.on_devices = {i.role for stream in streams if stream.slots == 1 for i in stream.instructions}
        self.tied = {id for group in interactions(graph) for id in group}
        self.data = [edge for edge in graph.edges if edge.kind is EdgeKind.DATA]

    def prompts(self, op: str) -> int:
        return rows_of(self.graph).nominal(self.graph.op(op))[0]

    def may_open(self, op: Op) -> bool:
        """A generate call of every step, of a number of rows that is known before it starts."""
        runs = self.runs[op.id]
        plain = len(runs) == 1 and runs[0].every_steps == 1 and self.graph.step.refill is None
        return plain and op.role in self.on_devices and isinstance(op.params, GenerateParams)

    def readers(self, session: Op, taken: set[str], most: Granularity) -> tuple[str, ...]:
        """Ops that can run part by part and read no more than `most` at once, in the order of the graph."""
        below = reachable([session.id], [(edge.source, edge.target) for edge in self.data]) - {session.id}
        found = {session.id}
        grown = True
        while grown:
            fine = {id for id in below - found - taken if self.graph.op(id).granularity.rank <= most.rank}
            more = {id for id in fine if self._reads_parts(id, session, found, below)}
            grown, found = bool(more), found | more
        return tuple(op.id for op in self.graph.ops if op.id in found and op.id != session.id)

    def _reads_parts(self, id: str, session: Op, parts: set[str], below: frozenset[str]) -> bool:
        """Whether it reads parts alone of what the session makes, and stands elsewhere, on devices that its role does
        not leave."""
        op, runs, opened = self.graph.op(id), self.runs[id], self.runs[session.id][0]
        if len(runs) != 1 or id in self.tied or op.role in self.moving:
            return False
        if op.role in self.on_devices and not self.reads_on_devices:
            return False
        if self.graph.role(op.role).kind in (Kind.DATA, Kind.FILTER) or isinstance(op.params, GenerateParams):
            return False
        if rows_of(self.graph).space(op) != frozenset({session.id}):
            return False
        own = runs[0]
        if _cadence(own) != _cadence(opened):
            return False
        elsewhere = self.lane_of[own.id] != self.lane_of[opened.id]
        into = [edge for edge in self.data if edge.target == id]
        made = {edge.source for edge in into if edge.source in below or edge.source == session.id}
        whole = self.prompts(id) == self.prompts(session.id) and not any(edge.tokens for edge in into)
        return elsewhere and whole and bool(made) and made <= parts

    def goes_on(self, op: Op) -> bool:
        """Partial rollouts of a generator that stays and does nothing else, of prompts that nobody else works on: which
        of them a step takes is known when it has taken them."""
        rows = rows_of(self.graph)
        sets = rows.data_sets(op)
        shared = any(rows.space(each) != frozenset({op.id}) for each in self.graph.ops if self._works_on(each, sets))
        alone = not shared and sum(each.role == op.role for each in self.graph.ops) == 1
        receives = any(
            i.role == op.role and i.kind is InstructionKind.RECEIVE_WEIGHTS for own in self.runs.values() for i in own
        )
        return self.graph.schedule.partial_rollout and alone and receives and op.role not in self.moving

    def _works_on(self, op: Op, sets: frozenset[str]) -> bool:
        return op.id not in sets and bool(rows_of(self.graph).data_sets(op) & sets)

    def updates(self, session: Op) -> tuple[Op, ...]:
        """Those that train on what the session makes, and perhaps on more."""
        spaces = rows_of(self.graph)
        return tuple(op for op in self.graph.ops if op.method == "update" and session.id in spaces.space(op))

    def waits(self, op: Op, session: Op, parts: Sequence[Rows], cut: Collection[str]) -> str | None:
        """Why the updates of `op`, which train on what the session makes, wait for its last part, in words; None if the
        first may begin before. `cut`: ops that run once for each part."""
        runs, opened = self.runs[op.id], self.runs[session.id][0]
        if op.id in self.tied or any(_cadence(own) != _cadence(opened) for own in runs):
            return "it works in other steps"
        if rows_of(self.graph).space(op) != frozenset({session.id}):
            return "it trains on what several calls have made"
        rows = self._waits_by_rows(op, len(runs), parts)
        return rows or self._waits_by_place(op, session) or self._waits_for_another(op, session, cut)

    def _waits_by_rows(self, op: Op, firings: int, parts: Sequence[Rows]) -> str | None:
        """Parts and minibatches must be as many, or one of them a whole number of the others."""
        minibatches = firings // (op.params.epochs if isinstance(op.params, UpdateParams) else 1)
        if minibatches == 1:
            return "one minibatch is the whole step"
        if rows_of(self.graph).governing(op) or self.graph.schedule.when_stale == "drop":
            return "which rows are left is known when all are done"
        if minibatches % len(parts) and len(parts) % minibatches:
            return f"{minibatches} minibatches and {len(parts)} parts do not share their borders"
        return None

    def _waits_by_place(self, op: Op, session: Op) -> str | None:
        if op.role in self.moving:
            return f"{op.role} leaves its devices while others work"
        if self.lane_of[self.runs[op.id][0].id] == self.lane_of[self.runs[session.id][0].id]:
            return f"{op.role} works on the devices of {session.role}"
        if not self.reads_on_devices:
            return "parts are for the host alone"
        return None

    def _waits_for_another(self, op: Op, session: Op, cut: Collection[str]) -> str | None:
        """What it reads must be cut, and nothing that is cut may read the weights that it changes."""
        below = reachable([session.id], [(edge.source, edge.target) for edge in self.data])
        into = [edge for edge in self.data if edge.target == op.id]
        made = [edge.source for edge in into if edge.source in below]
        whole = next((id for id in made if id != session.id and id not in cut), None)
        if whole is not None:
            return f"{self._first_whole(whole, below - {session.id}, cut)} works on all rows at once"
        if any(edge.tokens for edge in into) or self.prompts(op.id) != self.prompts(session.id):
            return "it trains on rows of another step"
        state = (e for e in self.graph.edges if e.kind is EdgeKind.STATE and e.target == op.id and not e.tokens)
        reader = next((edge.source for edge in state if edge.source in below), None)
        return None if reader is None else f"{reader} reads its weights before they change"

    def _first_whole(self, id: str, below: Collection[str], cut: Collection[str]) -> str:
        """Of what is not cut, `id` or the first above it."""
        above = (e.source for e in self.data if e.target == id and e.source in below and e.source not in cut)
        found = next(above, None)
        return id if found is None else self._first_whole(found, below, cut)


def _cadence(own: Instruction) -> tuple[int, int, bool]:
    return own.every_steps, own.start_step, own.epilogue
