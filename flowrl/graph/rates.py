"""The graph as synchronous dataflow: actors, rates, tokens and capacities, for the solver of sdf.py.

Takes a graph whose inputs are bound, gives channels between names. One iteration is one step. Two views:

- `step_rates`: a firing is what the program dispatches: an op on all its rows of the step, an update on one minibatch.
- `unit_rates`: a firing is the op's granularity: one prompt, one sample, one group, one minibatch, the step.

Tokens of data channels are rows: samples, or prompts where an op works on prompts. `every_steps` and `start_step` do
not change rates: in a step in which an op or an edge rests, it fires idle and passes its tokens on (the phases of a
cyclo-static graph, all with the same rates). Where filters and refill make counts random, the composite's fixed counts
stand: below the last filter exact, above it those of one round. An interaction is one actor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import lcm

from flowrl.graph.graph import Edge, EdgeKind, Graph, Input, Op
from flowrl.graph.interactions import interactions
from flowrl.graph.once import once
from flowrl.graph.params import UpdateParams
from flowrl.graph.rows import RowBounds, Rows, rows_of, rows_per_step, samples_per_prompt
from flowrl.graph.sdf import Balance, Channel, balance
from flowrl.graph.types import Granularity

__all__ = [
    "READ_AND_MADE",
    "STEP",
    "RateGraph",
    "RowBounds",
    "Rows",
    "balance_of",
    "crossing_inputs",
    "rows_per_step",
    "samples_per_prompt",
    "step_rates",
    "steps_ahead",
    "unit_rates",
    "updates_per_step",
    "versions_per_step",
]

_Rate = int | Fraction
"""A fraction only where it must be one: almost all counts are whole, and fractions are slow."""

STEP = "step"
"""The actor that fires once a step and lets everything else begin."""
READ_AND_MADE = 2
"""Steps of rows that a data edge holds at lag 0: those being read, and the next ones being made."""


@dataclass(frozen=True, slots=True)
class RateGraph:
    actors: tuple[str, ...]
    channels: tuple[Channel, ...]
    actor_of: Mapping[str, str]
    """Op id → actor; the members of an interaction share one."""


def step_rates(graph: Graph, rows: Rows | None = None) -> RateGraph:
    """The view of the program, with its capacities: 2 + lag steps of rows on a data edge, one more version than its
    tokens on a weights edge."""
    return _step_rates(graph) if rows is None else _Builder(graph, rows, streamed=False).build()


def unit_rates(graph: Graph, rows: Rows | None = None) -> RateGraph:
    """The view of the granularities, without capacities."""
    return _Builder(graph, rows or rows_of(graph), streamed=True).build()


@once
def _step_rates(graph: Graph) -> RateGraph:
    return _Builder(graph, rows_of(graph), streamed=False).build()


@once
def balance_of(graph: Graph) -> Balance:
    """The solution of the program's balance equations."""
    rates = step_rates(graph)
    return balance(rates.actors, rates.channels)


def updates_per_step(graph: Graph, role: str) -> int:
    """Optimizer updates of a role in a step: updates · epochs; 0 where nothing trains it."""
    updates = (op.params for op in graph.ops if op.role == role and op.method == "update")
    return sum(p.updates * p.epochs for p in updates if isinstance(p, UpdateParams))


def versions_per_step(graph: Graph, edge: Edge) -> int:
    """Versions that the source of a weights edge publishes a step: one, or one after every n-th update."""
    if edge.every_updates is None:
        return 1
    return max(1, updates_per_step(graph, _role(edge.source)) // edge.every_updates)


def steps_ahead(graph: Graph, edge: Edge) -> int:
    """How many steps the receiver of a lowered weights edge may run ahead of the sender, rounded up to whole ones."""
    versions = versions_per_step(graph, edge)
    return -(-(edge.tokens - versions) // versions)


def crossing_inputs(rows: Rows, op: Op) -> tuple[Input, ...]:
    """Inputs that `inputs:` takes from another call of generate: they join by prompt, one row each."""
    chosen = [(i, rows.op(i.source or "")) for i in op.inputs if i.chosen is not None]
    return tuple(i for i, source in chosen if source is not None and _apart(rows, source, op))


def _apart(rows: Rows, source: Op, target: Op) -> bool:
    """Whether two ops work on samples of different calls of generate."""
    one, other = rows.space(source), rows.space(target)
    return bool(one & rows.generators) and bool(other & rows.generators) and not one & other


class _Builder:
    def __init__(self, graph: Graph, rows: Rows, streamed: bool) -> None:
        self.graph = graph
        self.rows = rows
        self.streamed = streamed
        self.ops = {op.id: op for op in graph.ops}
        self.actor_of = _actors(graph)
        ahead = [steps_ahead(graph, edge) for edge in graph.edges if edge.kind is EdgeKind.WEIGHTS]
        self._firings: dict[str, _Rate] = {}
        self._sizes: dict[str, int] = {}
        self._crossing: dict[str, frozenset[str]] = {}
        self.steps_held = READ_AND_MADE + max(ahead, default=0)

    def build(self) -> RateGraph:
        channels = [*self._starts(), *self._data(), *self._weights()]
        channels += [] if self.streamed else self._states()
        actors = dict.fromkeys((STEP, *self.actor_of.values(), *(c.target for c in channels)))
        return RateGraph(tuple(actors), tuple(channels), self.actor_of)

    def firings(self, op: Op) -> _Rate:
        """How often the op fires a step, from its own rows and granularity alone. Of an update: what its keys say."""
        if op.id not in self._firings:
            self._firings[op.id] = self._fired(op)
        return self._firings[op.id]

    def _fired(self, op: Op) -> _Rate:
        if isinstance(op.params, UpdateParams):
            return op.params.updates * op.params.epochs
        return self._rows(op) / self._firing(op) if self.streamed else 1

    def _starts(self) -> Iterator[Channel]:
        """The step lets data sets begin, and whatever else has nothing above it; an update fires as often as its keys
        say, each edge's receiver once."""
        fed = {e.target for e in self.graph.edges if e.kind is EdgeKind.DATA}
        for op in self.graph.ops:
            if op.id not in fed or isinstance(op.params, UpdateParams):
                yield self._channel(f"{STEP} -> {op.id}", STEP, op.id, self.firings(op), 1)
        for edge in self._weights_edges():
            yield Channel(f"{STEP} -> {_receive(edge)}", STEP, _receive(edge))

    def _data(self) -> Iterator[Channel]:
        for edge in self.graph.edges:
            if edge.kind is not EdgeKind.DATA or edge.source not in self.ops or edge.target not in self.ops:
                continue
            source, target = self.ops[edge.source], self.ops[edge.target]
            made, read = self._rows(source), self._share(source, target, self._crosses(source, target))
            if isinstance(target.params, UpdateParams):
                made *= target.params.epochs
            produce = _split(made, self.firings(source))
            yield self._channel(edge.id, source.id, target.id, produce, read, held=not self.streamed)

    def _crosses(self, source: Op, target: Op) -> bool:
        """Whether an input of the target is a field of the source from another call."""
        if target.id not in self._crossing:
            self._crossing[target.id] = frozenset(i.source or "" for i in crossing_inputs(self.rows, target))
        return source.id in self._crossing[target.id]

    def _share(self, source: Op, target: Op, crossing: bool) -> _Rate:
        """Rows of the source that one firing of the target takes: its even share of all (those that a filter has taken
        from the target are dropped there), of an update those of a minibatch; one for each prompt where a field crosses
        from another call."""
        made = self._rows(source)
        if isinstance(target.params, UpdateParams):
            return Fraction(made * self._minibatch(target), self._prompts(target))
        return _split(self._prompts(source) if crossing else made, self.firings(target))

    def _weights(self) -> Iterator[Channel]:
        """update → publish → receive → the ops of the role that reads the weights."""
        for edge in self._weights_edges():
            versions = versions_per_step(self.graph, edge)
            updates = updates_per_step(self.graph, _role(edge.source))
            tokens = edge.tokens if edge in self.graph.edges else edge.tokens - 1 + versions
            send, receive = f"publish {edge.id}", _receive(edge)
            update = next(op for op in self.graph.ops if op.role == _role(edge.source) and op.method == "update")
            yield Channel(f"{update.id} -> {send}", update.id, send, consume=edge.every_updates or updates)
            capacity = None if self.streamed else tokens + versions
            yield Channel(edge.id, send, receive, consume=versions, tokens=tokens, capacity=capacity)
            for op in self.graph.ops:
                if op.role == _role(edge.target) and op.method != "update":
                    yield self._channel(f"{receive} -> {op.id}", receive, op.id, self.firings(op), 1)

    def _weights_edges(self) -> list[Edge]:
        """The lowered ones, or before there are any the declared ones; without those whose ends are gone."""
        lowered = "insert_weight_sync" in self.graph.passes
        edges = self.graph.edges if lowered else self.graph.declared
        live = {op.role for op in self.graph.ops}
        found = [e for e in edges if e.kind is EdgeKind.WEIGHTS and {_role(e.source), _role(e.target)} <= live]
        return [edge for edge in found if updates_per_step(self.graph, _role(edge.source))]

    def _states(self) -> Iterator[Channel]:
        """Read before write: all firings of the reader come before the first update of the step."""
        for edge in self.graph.edges:
            if edge.kind is not EdgeKind.STATE or edge.source not in self.ops or edge.target not in self.ops:
                continue
            if edge.source == edge.target:
                yield Channel(edge.id, edge.source, edge.target, tokens=edge.tokens, capacity=READ_AND_MADE)
                continue
            reader, update = self.firings(self.ops[edge.source]), self.firings(self.ops[edge.target])
            most = READ_AND_MADE * int(reader * update)
            ends = (self.actor_of[edge.source], self.actor_of[edge.target])
            made, read = _whole(update, reader)
            yield Channel(edge.id, *ends, produce=made, consume=read, tokens=edge.tokens, capacity=most)

    def _channel(
        self, name: str, source: str, target: str, produce: _Rate, consume: _Rate, held: bool = False
    ) -> Channel:
        """With the room that the program has where rows are `held`: those of 2 + lag steps."""
        ends = (self.actor_of.get(source, source), self.actor_of.get(target, target))
        made, read = _whole(produce, consume)
        most = self.steps_held * made * int(self.firings(self.ops[source])) if held else None
        return Channel(name, *ends, produce=made, consume=read, capacity=most)

    def _prompts(self, op: Op) -> int:
        return max(1, self.rows.nominal(op)[0])

    def _rows(self, op: Op) -> int:
        if op.id not in self._sizes:
            prompts, samples = self.rows.nominal(op)
            self._sizes[op.id] = max(1, prompts if op.granularity is Granularity.PROMPT else samples)
        return self._sizes[op.id]

    def _minibatch(self, op: Op) -> int:
        """Prompts of one update: the whole number nearest below an even share."""
        assert isinstance(op.params, UpdateParams)
        return max(1, self._prompts(op) // op.params.updates)

    def _firing(self, op: Op) -> Fraction:
        """Rows of one firing at the op's granularity."""
        sizes = {
            Granularity.PROMPT: Fraction(1),
            Granularity.SAMPLE: Fraction(1),
            Granularity.GROUP: Fraction(self._rows(op), self._prompts(op)),
            Granularity.STEP: Fraction(self._rows(op)),
        }
        return sizes[op.granularity]


def _actors(graph: Graph) -> dict[str, str]:
    """The actor of each op: itself, or all members of its interaction together."""
    names = {op.id: op.id for op in graph.ops}
    for members in interactions(graph):
        names |= dict.fromkeys(members, " with ".join(sorted(members)))
    return names


def _split(rows: int, firings: _Rate) -> _Rate:
    """Rows of one firing."""
    return rows if firings == 1 else Fraction(rows) / firings


def _whole(produce: _Rate, consume: _Rate) -> tuple[int, int]:
    """Both rates in whole numbers: as given, or in parts of a row."""
    parts = lcm(produce.denominator, consume.denominator)
    made = produce.numerator * (parts // produce.denominator)
    return made, consume.numerator * (parts // consume.denominator)


def _role(end: str) -> str:
    """The role at an end of a weights edge, which names the role or one of its ops."""
    return end.partition(".")[0]


def _receive(edge: Edge) -> str:
    return f"receive {edge.id}"
