"""A toy that executes a graph's edges with tagged tokens, knowing nothing of the solver: what its lag and its deadlocks
are, it finds by running."""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import dataclass, field

from flowrl.graph.graph import Edge, EdgeKind, Graph, Op
from flowrl.graph.params import UpdateParams

Tag = tuple[str, str, int]
"""A call of generate, a weights edge into its role, and the version of its weights behind a token."""


@dataclass
class Measured:
    """By update, call of generate and weights edge: the most versions a sample was behind when its step began, and the
    most updates of its trainer since the newest version before the step, when the last minibatch began (0 for weights
    of another trainer)."""

    lag: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    drift: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    stuck: bool = False


class Toy:
    """Steps 1 … `steps` of every op, in an order that chance decides wherever tokens leave a choice."""

    def __init__(self, graph: Graph, steps: int, seed: int) -> None:
        self.graph = graph
        self.steps = steps
        self.chance = random.Random(seed)
        self.measured = Measured()
        self.ops = {op.id: op for op in graph.ops}
        self.into = {
            (id, kind): [e for e in graph.edges if (e.target, e.kind) == (id, kind)] for id, kind in self._ends()
        }
        self.out = {
            (id, kind): [e for e in graph.edges if (e.source, e.kind) == (id, kind)] for id, kind in self._ends()
        }
        self.now = dict.fromkeys(self.ops, 1)
        self.minibatch = dict.fromkeys(self.ops, 0)
        self.updates = dict.fromkeys(self.ops, 0)
        self.rows = {e.id: deque[frozenset[Tag]]() for e in graph.edges if e.kind is EdgeKind.DATA}
        self.turns = {e.id: e.tokens for e in graph.edges if e.kind is EdgeKind.STATE and e.source != e.target}
        self.weights = {e.id: e for e in graph.edges if e.kind is EdgeKind.WEIGHTS}
        self.waiting = {id: deque([0] * edge.tokens) for id, edge in self.weights.items()}
        self.published = dict.fromkeys(self.weights, 0)
        self.published_by = {id: {0: 0} for id in self.weights}
        self.trained_at_publish = {id: {0: 0} for id in self.weights}
        self.updates_by: dict[str, dict[int, int]] = {id: {} for id in self.ops}
        self.held: dict[tuple[str, int], dict[str, int]] = {}
        self.samples: list[tuple[str, int, tuple[str, str], int]] = []
        """Update, step, call of generate with weights edge, version of the oldest token."""

    def run(self) -> Measured:
        groups = self._groups()
        while (ready := self._any(groups)) is not None:
            self._fire(ready)
        self.measured.stuck = any(step <= self.steps for step in self.now.values())
        self._measure()
        return self.measured

    def _ends(self) -> list[tuple[str, EdgeKind]]:
        return [(id, kind) for id in self.ops for kind in (EdgeKind.DATA, EdgeKind.STATE)]

    def _groups(self) -> list[tuple[str, ...]]:
        """Ops that fire alone, and those that an interaction ties."""
        groups = [{id} for id in self.ops]
        for edge in self.graph.edges:
            if edge.kind is EdgeKind.INTERACTION:
                tied = [group for group in groups if group & {edge.source, edge.target}]
                groups = [group for group in groups if group not in tied] + [set[str]().union(*tied)]
        return [tuple(sorted(group)) for group in groups]

    def _any(self, groups: list[tuple[str, ...]]) -> tuple[str, ...] | None:
        """Some group that can fire."""
        tried = self.chance.sample(groups, len(groups))
        return next((group for group in tried if all(self._able(op) for op in group)), None)

    def _able(self, id: str) -> bool:
        op, step = self.ops[id], self.now[id]
        if step > self.steps:
            return False
        # A member of an interaction cannot wait for rows that another one makes while it works: they must be there.
        if self.minibatch[id] == 0 and not all(self.rows[edge.id] for edge in self.into[id, EdgeKind.DATA]):
            return False
        if self.minibatch[id] == 0 and not all(self.turns.get(e.id, 1) for e in self.into[id, EdgeKind.STATE]):
            return False
        if isinstance(op.params, UpdateParams):
            return True
        return all((op.role, step) in self.held or len(self.waiting[e.id]) >= self._versions(e) for e in self._fed(op))

    def _fed(self, op: Op) -> list[Edge]:
        return [edge for edge in self.weights.values() if edge.target == op.role]

    def _versions(self, edge: Edge) -> int:
        if edge.every_updates is None:
            return 1
        params = self._trainer(edge).params
        assert isinstance(params, UpdateParams)
        return params.updates * params.epochs // edge.every_updates

    def _trainer(self, edge: Edge) -> Op:
        return next(op for op in self.graph.ops if op.role == edge.source and isinstance(op.params, UpdateParams))

    def _fire(self, group: tuple[str, ...]) -> None:
        tags = {id: self._taken(id) for id in group}
        made = frozenset[Tag]().union(*tags.values(), *(self._generated(self.ops[id], self.now[id]) for id in group))
        for id in group:
            op = self.ops[id]
            if isinstance(op.params, UpdateParams):
                self._train(op, tags[id])
                continue
            for edge in self.out[id, EdgeKind.DATA]:
                self.rows[edge.id].append(made if _works(op, self.now[id]) else frozenset())
            for edge in self.out[id, EdgeKind.STATE]:
                self.turns[edge.id] += 1
            self.now[id] += 1

    def _taken(self, id: str) -> frozenset[Tag]:
        """The rows of the step, taken by the first minibatch; the others look at the same."""
        if self.minibatch[id]:
            return frozenset()
        for edge in self.into[id, EdgeKind.STATE]:
            if edge.id in self.turns:
                self.turns[edge.id] -= 1
        return frozenset[Tag]().union(*(self.rows[edge.id].popleft() for edge in self.into[id, EdgeKind.DATA]))

    def _generated(self, op: Op, step: int) -> frozenset[Tag]:
        """Tokens of the weights that the role holds in this step; a partial rollout goes on under whatever newer
        versions lie there already."""
        if (op.role, step) not in self.held:
            self.held[op.role, step] = {}
            for edge in self._fed(op):
                taken = [self.waiting[edge.id].popleft() for _ in range(self._versions(edge))]
                self.held[op.role, step][edge.id] = taken[-1]
        if op.method != "generate":
            return frozenset()
        tags = {(op.id, edge, version) for edge, version in self.held[op.role, step].items()}
        if self.graph.schedule.partial_rollout:
            tags |= {(op.id, e.id, version) for e in self._fed(op) for version in list(self.waiting[e.id])[:1]}
        return frozenset(tags)

    def _train(self, op: Op, tags: frozenset[Tag]) -> None:
        assert isinstance(op.params, UpdateParams)
        step, count = self.now[op.id], op.params.updates * op.params.epochs
        if self.minibatch[op.id] == 0 and _works(op, step):
            oldest: dict[tuple[str, str], int] = {}
            for generate, edge, version in tags:
                oldest[generate, edge] = min(version, oldest.get((generate, edge), version))
            self.samples += [(op.id, step, key, version) for key, version in oldest.items()]
        self.minibatch[op.id] += 1
        self.updates[op.id] += _works(op, step)
        for edge in self.weights.values():
            if edge.source != op.role:
                continue
            every = edge.every_updates or count
            if self.minibatch[op.id] % every == 0:
                self._publish(edge, op, step)
        if self.minibatch[op.id] == count:
            self.minibatch[op.id] = 0
            self.updates_by[op.id][step] = self.updates[op.id]
            self.now[op.id] += 1
            for edge in self.out[op.id, EdgeKind.DATA]:
                self.rows[edge.id].append(frozenset())

    def _publish(self, edge: Edge, op: Op, step: int) -> None:
        rests = (step - 1) % (edge.every_steps or 1) != 0 or step <= (edge.start_step or 0)
        if not rests:
            self.published[edge.id] += 1
            self.trained_at_publish[edge.id][step] = self.updates[op.id]
        self.published_by[edge.id][step] = self.published[edge.id]
        self.waiting[edge.id].append(self.published[edge.id])

    def _measure(self) -> None:
        for op, step, (generate, id), version in self.samples:
            trainer = self._trainer(self.weights[id])
            if step not in self.updates_by[trainer.id] or step - 1 not in self.published_by[id]:
                continue  # the other trainer had not come so far when the run ended
            key = (op, generate, id)
            self.measured.lag[key] = max(self.measured.lag[key], self.published_by[id][step - 1] - version)
            newest = max(s for s in self.trained_at_publish[id] if s < step)
            drift = self.updates_by[trainer.id][step] - 1 - self.trained_at_publish[id][newest]
            self.measured.drift[key] = max(self.measured.drift[key], drift if trainer.id == op else 0)


def _works(op: Op, step: int) -> bool:
    return (step - 1) % op.every_steps == 0 and step > op.start_step
