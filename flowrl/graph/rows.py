"""Rows: on how many rows an op works in a step in which it fires, and which of them filters may take away.

Takes a graph at any stage (names must fit), gives counts. A *sample space* is what one call of generate opens: the
prompts of the step with `samples_per_prompt` samples each; generators of one interaction share theirs; without a
generator it is the data set's own rows (pairs have two a prompt). A filter that drops takes its rows from everything
below it and from every update of its space, as `when_stale: drop` takes old samples from the updates. With
`step.refill` data, generation and all else that a dropping filter decides by are a *round*, which is run again until
exactly `step.prompts` prompts are left; everything else on those prompts works on what is left.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from fractions import Fraction
from math import ceil

import msgspec
import networkx as nx

from flowrl.graph.algorithms import reachable, toposort
from flowrl.graph.graph import EdgeKind, Graph, Op
from flowrl.graph.once import once
from flowrl.graph.params import DataParams, EstimateParams, FilterParams, GenerateParams
from flowrl.graph.records import links_of
from flowrl.graph.types import Granularity

PAIR = 2
"""Samples of a prompt in a data set of chosen and rejected responses, and those that best_worst picks of a group."""
_WHOLE = Fraction(1, 100)
"""How far from a whole count a written share may lie: 0.333 of 9 rows is 3 rows."""


class RowBounds(msgspec.Struct, frozen=True, gc=False):
    """Fewest and most rows of an op in one step in which it fires: prompts for an op of granularity prompt (data sets),
    samples for all others. Of an update: rows of one pass over the batch, all its minibatches together."""

    least: int
    most: int | None
    """None: a whole data set, whose size is known when it is read (validation)."""

    @property
    def fixed(self) -> int | None:
        """The count, where it is the same in every step; else None."""
        return self.least if self.least == self.most else None


class _Count(msgspec.Struct, frozen=True, gc=False):
    """Prompts with rows left, and rows: fewest and most of each."""

    prompts: tuple[int, int]
    samples: tuple[int, int]


class Rows:
    """Row counts of one graph, whose data edges must be acyclic (ValueError). Pure; made once and asked often."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._ops = {op.id: op for op in graph.ops}
        self._counts: dict[str, _Count | None] = {}
        self._widths: dict[frozenset[str], tuple[int | None, bool]] = {}
        self.generators = frozenset(op.id for op in graph.ops if isinstance(op.params, GenerateParams))
        """Every call of generate."""
        above = _sources(graph)
        pairs = [(source, target) for target, sources in above.items() for source in sources]
        together = _interacting(graph)
        self._spaces: dict[str, frozenset[str]] = {}
        self._sets: dict[str, frozenset[str]] = {}
        for id in toposort(self._ops, pairs):
            params = self._ops[id].params
            own = frozenset({id}) if isinstance(params, DataParams) else frozenset[str]()
            self._sets[id] = own.union(*(self._sets[source] for source in above[id]))
            upstream = frozenset[str]().union(*(self._spaces[source] for source in above[id]))
            opens = frozenset({id}) if isinstance(params, GenerateParams) else own | upstream
            self._spaces[id] = together.get(id, opens)
        self._spaces = {id: self._generated(space) for id, space in self._spaces.items()}
        trained = trained_ops(graph)
        self._stepwise = trained | reachable(trained, pairs)
        dropping = [op for op in graph.ops if isinstance(op.params, FilterParams) and op.params.action == "drop"]
        self._below = {f.id: reachable([f.id], pairs) - {f.id} for f in dropping}
        """Each dropping filter and the ops below it."""
        self._ageing = _ageing(graph)
        self._feeding = {f.id: reachable([f.id], [(b, a) for a, b in pairs]) - {f.id} for f in dropping}
        self.round = frozenset[str]() if graph.step.refill is None else self._round(pairs, dropping)
        """Ops that are run again while too few prompts are left (`step.refill`): the filters that drop, and all that
        these decide by."""
        masking = [op for op in graph.ops if isinstance(op.params, FilterParams) and op not in dropping]
        self._masked = {f.id: reachable([f.id], pairs) - {f.id} for f in masking}

    def bounds(self, op: Op) -> RowBounds:
        """Rows of `op` a step."""
        count = self._count(op)
        if count is None:
            return RowBounds(least=0, most=None)
        rows = count.prompts if op.granularity is Granularity.PROMPT else count.samples
        return RowBounds(least=rows[0], most=rows[1])

    def prompts(self, op: Op) -> RowBounds:
        """The prompts that the rows of `op` belong to: what minibatches share out."""
        count = self._count(op)
        return RowBounds(least=0, most=None) if count is None else RowBounds(*count.prompts)

    def nominal(self, op: Op) -> tuple[int, int]:
        """Prompts and samples that stand for the op where counts are random: the most that a filter may leave; where
        prompts are drawn again, those of one round. Of a whole data set: one prompt."""
        count = self._count(op)
        if count is None:
            return 1, self.samples_per_prompt(op)
        place = 0 if self.refilled(op) else 1
        return count.prompts[place], count.prompts[0] * self._width(op) if place == 0 else count.samples[1]

    def samples_per_prompt(self, op: Op) -> int:
        """Samples of each prompt that `op` makes or reads, before any filter; 1 where nothing generates. A field that
        `inputs:` took from another call of generate does not count."""
        made, paired = self._opened(self._spaces[op.id])
        if made is not None:
            return made
        return PAIR if paired and op.granularity is not Granularity.PROMPT else 1

    def _opened(self, space: frozenset[str]) -> tuple[int | None, bool]:
        """The most samples that a call of generate of the space makes of a prompt, and whether data of it is paired."""
        if space not in self._widths:
            params = [self._ops[id].params for id in space]
            made = [p.samples_per_prompt for p in params if isinstance(p, GenerateParams)]
            paired = any(isinstance(p, DataParams) and p.paired for p in params)
            self._widths[space] = (max(made, default=None), paired)
        return self._widths[space]

    def op(self, id: str) -> Op | None:
        return self._ops.get(id)

    def space(self, op: Op) -> frozenset[str]:
        """The calls of generate whose samples `op` works on; where there are none, its data sets."""
        return self._spaces[op.id]

    def data_sets(self, op: Op) -> frozenset[str]:
        """The data sets whose prompts the rows of `op` belong to."""
        return self._sets[op.id]

    def _round(self, pairs: Iterable[tuple[str, str]], dropping: Iterable[Op]) -> frozenset[str]:
        back = [(target, source) for source, target in pairs]
        back += [(op.id, i.source) for op in self._ops.values() for i in op.inputs if i.source in self._ops]
        for edge in self.graph.declared:
            if edge.kind is EdgeKind.INTERACTION:
                back += [(edge.source, edge.target), (edge.target, edge.source)]
        starts = [op.id for op in dropping if op.id in self._stepwise]
        return reachable(starts, back) & self._ops.keys()

    def filters(self, op: Op) -> tuple[Op, ...]:
        """The dropping filters whose rows `op` does not see, upstream first: those above it, and for an update all of
        its space. With refill those of all its prompts, if it is no part of a round."""
        return self._deciding(op, self._below)

    def governing(self, op: Op) -> tuple[Op, ...]:
        """The filters, dropping or masking, that decide on rows of `op`: the same rule for both."""
        return self._deciding(op, {**self._below, **self._masked})

    def _deciding(self, op: Op, below: Mapping[str, frozenset[str]]) -> tuple[Op, ...]:
        if not below:
            return ()
        found = [
            id
            for id in below
            if op.id in below[id] or (op.method == "update" and self._shares(id, op)) or self._after_rounds(id, op)
        ]
        found.sort(key=lambda id: (sum(id in each for each in below.values()), id))
        return tuple(self._ops[id] for id in found)

    def whole_set(self, op: Op) -> bool:
        """Whether the op works on all rows of a data set, not on the prompts of the step."""
        return op.id not in self._stepwise

    def refilled(self, op: Op) -> bool:
        """Whether more prompts are drawn for the op's rows until enough are left."""
        if self.graph.step.refill is None or self.whole_set(op):
            return False
        return bool(self._touches(op)) or self.drops_stale(op)

    def drops_stale(self, op: Op) -> bool:
        """Whether samples of the op's space are dropped that are too old to train on (`when_stale: drop`)."""
        return bool(self._ageing & self._spaces[op.id])

    def _width(self, op: Op) -> int:
        """Samples of a prompt that the op works on."""
        return PAIR if self._reads_pairs(op) else self.samples_per_prompt(op)

    def _generated(self, space: frozenset[str]) -> frozenset[str]:
        """The generators of a space if it has any, else its data sets."""
        return frozenset(id for id in space if isinstance(self._ops[id].params, GenerateParams)) or space

    def _count(self, op: Op) -> _Count | None:
        if self._ops.get(op.id) is not op:
            return self._counted(op)
        if op.id not in self._counts:
            self._counts[op.id] = self._counted(op)
        return self._counts[op.id]

    def _counted(self, op: Op) -> _Count | None:
        samples, step = self.samples_per_prompt(op), self.graph.step
        if self.whole_set(op):
            sets = [self._ops[id].params for id in self._sets[op.id]]
            seeds = [p.seeds for p in sets if isinstance(p, DataParams) and p.seeds is not None]
            return _count(seeds[0], samples) if len(seeds) == 1 else None
        filters = self.filters(op)
        if step.refill is not None and self.refilled(op):
            drawn = ceil(step.prompts * Fraction(str(step.refill.oversample)))
            last = set(self._touches(op)) <= {f.id for f in filters}
            last = last and (op.method == "update" or not self.drops_stale(op))
            count = _refilled(step.prompts, drawn, step.refill.max_rounds, samples, filters, last)
        else:
            count = _count(step.prompts, samples)
            for each in filters:
                assert isinstance(each.params, FilterParams)
                count = filtered(count.prompts, count.samples, each.params, samples)
            if op.method == "update" and self.drops_stale(op):
                count = _Count((0, count.prompts[1]), (0, count.samples[1]))
        return _picked(count) if self._reads_pairs(op) else count

    def _shares(self, id: str, op: Op) -> bool:
        """Whether the filter works in the op's space."""
        return id != op.id and bool(self._spaces[id] & self._spaces[op.id])

    def _after_rounds(self, id: str, op: Op) -> bool:
        """Whether the op works on what the rounds have left of prompts that the filter decides on."""
        return id in self.round and op.id not in self.round and self._on_prompts_of(id, op)

    def _on_prompts_of(self, id: str, op: Op) -> bool:
        return not self.whole_set(op) and bool(self._sets[id] & self._sets[op.id])

    def _touches(self, op: Op) -> tuple[str, ...]:
        """The filters that drop rows of the op's space, or rows made of the op's; with refill all of its prompts."""
        return tuple(
            id
            for id in self._below
            if id == op.id
            or self._shares(id, op)
            or op.id in self._feeding[id] | self._below[id]
            or self._after_rounds(id, op)
        )

    def _reads_pairs(self, op: Op) -> bool:
        """Whether the op trains on the two samples of each group that best_worst picks."""
        sources = (self._ops.get(i.source or "") for i in op.inputs if i.slot == "pair_sign")
        return any(isinstance(s.params, EstimateParams) and s.params.estimator == "best_worst" for s in sources if s)


@once
def rows_of(graph: Graph) -> Rows:
    """The row counts of a graph, made once for it."""
    return Rows(graph)


def rows_per_step(graph: Graph, op: Op) -> RowBounds:
    """Fewest and most rows of `op` in a step in which it fires; see RowBounds."""
    return rows_of(graph).bounds(op)


def samples_per_prompt(graph: Graph, op: Op) -> int:
    """Samples of each prompt that `op` makes or reads; see Rows."""
    return rows_of(graph).samples_per_prompt(op)


def trained_ops(graph: Graph) -> frozenset[str]:
    """Ops whose rows an update takes, the updates among them."""
    edges = graph.edges or graph.declared
    back = [(e.target, e.source) for e in edges if e.kind is EdgeKind.DATA]
    back += [
        pair for e in edges if e.kind is EdgeKind.INTERACTION for pair in ((e.target, e.source), (e.source, e.target))
    ]
    back += [(link.target, link.source) for link in links_of(graph)]
    return reachable((op.id for op in graph.ops if op.method == "update"), back)


def share_of(share: float, count: int) -> Fraction:
    """`share` of `count` rows: whole where it lies within a hundredth of a row of a whole count."""
    exact = Fraction(str(share)) * count
    near = round(exact)
    return Fraction(near) if abs(exact - near) <= _WHOLE else exact


def filtered(
    prompts: tuple[int, int], samples: tuple[int, int], params: FilterParams, samples_per_prompt: int
) -> _Count:
    """What a dropping filter leaves of so many prompts and samples."""
    if params.keep_top is None:
        return _Count((0, prompts[1]), (0, samples[1]))
    if params.unit == "group":
        left = tuple(int(share_of(params.keep_top, count)) for count in prompts)
        rows = tuple(count * samples_per_prompt for count in left)
        return _Count((left[0], left[1]), (min(rows[0], samples[0]), min(rows[1], samples[1])))
    if params.within == "group":
        best = int(share_of(params.keep_top, samples_per_prompt))
        return _Count(
            prompts if best else (0, 0), (min(best * prompts[0], samples[0]), min(best * prompts[1], samples[1]))
        )
    least, most = (int(share_of(params.keep_top, count)) for count in samples)
    return _Count((ceil(Fraction(least, samples_per_prompt)), min(prompts[1], most)), (least, most))


def _count(prompts: int, samples: int) -> _Count:
    return _Count((prompts, prompts), (prompts * samples, prompts * samples))


def _refilled(prompts: int, drawn: int, rounds: int, samples: int, filters: tuple[Op, ...], last: bool) -> _Count:
    """Above the filters everything that is drawn, in one round or in all; below the last one the step's prompts, each
    with a sample or more."""
    if not filters and not last:
        return _Count((drawn, drawn * rounds), (drawn * samples, drawn * rounds * samples))
    least = most = samples
    for params in (f.params for f in filters if isinstance(f.params, FilterParams)):
        if params.unit == "sample" and params.keep_top is not None and params.within == "group":
            least, most = min(least, int(share_of(params.keep_top, samples))), int(share_of(params.keep_top, samples))
        elif params.unit == "sample":
            least = 1
    left = prompts if last else drawn * rounds
    return _Count((prompts, left), (prompts * least, left * most))


def _picked(count: _Count) -> _Count:
    """Two samples of each prompt that is left."""
    return _Count(
        count.prompts, (min(PAIR * count.prompts[0], count.samples[0]), min(PAIR * count.prompts[1], count.samples[1]))
    )


def _ageing(graph: Graph) -> frozenset[str]:
    """The calls of generate whose samples are dropped once they are too old: an update drops them, so where `=>` has a
    lag above 0."""
    if graph.schedule.when_stale != "drop":
        return frozenset()
    behind = {e.target.partition(".")[0] for e in graph.declared if e.kind is EdgeKind.WEIGHTS and e.tokens > 1}
    return frozenset(op.id for op in graph.ops if isinstance(op.params, GenerateParams) and op.role in behind)


def _sources(graph: Graph) -> Mapping[str, frozenset[str]]:
    """The ops directly above each op: along declared edges, and along bound inputs of ops that passes added. A record
    passes through an op that was removed: its edges still order what stands below a filter."""
    above: dict[str, set[str]] = {op.id: set() for op in graph.ops}
    for link in links_of(graph):
        above[link.target].add(link.source)
    for source, target in _through_removed(graph, above.keys()):
        above[target].add(source)
    for op in graph.ops:
        above[op.id].update(i.source for i in op.inputs if i.source in above and i.chosen is None)
    return {id: frozenset(sources) for id, sources in above.items()}


def _through_removed(graph: Graph, known: Collection[str]) -> Iterator[tuple[str, str]]:
    """Pairs of ops that are there, joined by declared edges over ops that were removed."""
    gone = {removal.id for removal in graph.removed}
    pairs = [(e.source, e.target) for e in graph.declared if e.kind is EdgeKind.DATA and {e.source, e.target} & gone]
    for source in {source for source, _ in pairs if source in known}:
        first = {target for start, target in pairs if start == source}
        below = reachable(first, [pair for pair in pairs if pair[0] in gone])
        yield from ((source, target) for target in below if target in known)


def _interacting(graph: Graph) -> Mapping[str, frozenset[str]]:
    """For each op of an interaction (an environment's reset too) the generators that take part in it."""
    tied: nx.Graph[str] = nx.Graph()
    tied.add_edges_from((e.source, e.target) for e in graph.declared if e.kind is EdgeKind.INTERACTION)
    known = {op.id: op for op in graph.ops}
    found: dict[str, frozenset[str]] = {}
    for part in nx.connected_components(tied):
        live = [known[id] for id in part if id in known]
        generators = frozenset(op.id for op in live if isinstance(op.params, GenerateParams))
        found |= dict.fromkeys((*part, *_resets(graph.ops, live)), generators)
    return found


def _resets(ops: Iterable[Op], live: Iterable[Op]) -> list[str]:
    steps = {(op.role, op.label) for op in live if op.method == "step"}
    return [op.id for op in ops if op.method == "reset" and (op.role, op.label) in steps]
