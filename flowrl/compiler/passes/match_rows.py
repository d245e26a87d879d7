"""match_rows: the rows that an op joins are rows of one sample space, and what a function writes fits its rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from flowrl.diag.diagnostic import Diagnostic, FlowError, Help, diagnose
from flowrl.diag.near import near_names
from flowrl.graph.graph import Edge, EdgeKind, Graph, Kind, Op
from flowrl.graph.params import AskParams, DataParams, GenerateParams
from flowrl.graph.records import Records, records
from flowrl.graph.types import Granularity, Unit

LISTED = 8


def match_rows(graph: Graph) -> Graph:
    """Refuse joins of rows that never match; the graph itself is unchanged.

    before: actor_infer.generate -> reward.score        before: actor_infer.generate, other.generate -> reward.score
    after:  the same                                    after:  FR0334 at the edge from `other.generate`

    Requires: acyclic declared edges. Ensures: all rows above an op are of one call of generate (or one interaction) and
    of its data sets; generators of one interaction make as many samples of each prompt; a function writes nothing
    coarser or finer than its rows; `fields` of edges name real columns.
    """
    found = _Spaces(graph, records(graph.ops, graph.roles, graph.declared))
    problems = [*found.clashes(), *_uneven(graph), *_misfits(graph, found), *_unknown_fields(graph, found.records)]
    if problems:
        raise FlowError(problems)
    return graph


@dataclass(frozen=True, slots=True)
class _Space:
    """Whose rows an op has: calls of generate, and the data sets that those (or it) are fed from."""

    calls: frozenset[str] = frozenset()
    data: frozenset[str] = frozenset()

    @property
    def names(self) -> str:
        return " and ".join(f"`{name}`" for name in sorted(self.calls or self.data))


class _Spaces:
    def __init__(self, graph: Graph, found: Records) -> None:
        self.graph = graph
        self.records = found
        self._ops = {op.id: op for op in graph.ops}
        self._partners = _partners(graph)
        self._bad: list[Diagnostic] = []
        self.of: dict[str, _Space] = {}
        into: dict[str, list[tuple[str, str | None]]] = {op.id: [] for op in graph.ops}
        for link in found.links:
            into[link.target].append((link.source, link.edge))
        for id in found.order:
            self.of[id] = self._space(self._ops[id], into[id])

    def clashes(self) -> list[Diagnostic]:
        return self._bad

    def _space(self, op: Op, into: Iterable[tuple[str, str | None]]) -> _Space:
        if isinstance(op.params, DataParams):
            return _Space(data=frozenset({op.id}))
        joined = _Space()
        for source, edge in into:
            other = self.of[source]
            if isinstance(op.params, GenerateParams):
                clash = bool(other.calls) or _apart(joined.data, other.data)
            else:
                clash = _apart(joined.calls, other.calls) or _apart(joined.data, other.data)
            if clash:
                if not isinstance(op.params, AskParams):  # the judge is fed the same, and is told of
                    self._bad.append(self._clash(op, joined if joined.data or joined.calls else None, other, edge))
                continue
            joined = _Space(joined.calls | other.calls, joined.data | other.data)
        if isinstance(op.params, GenerateParams):
            return _Space(self._partners.get(op.id, frozenset({op.id})), joined.data)
        return joined

    def _clash(self, op: Op, mine: _Space | None, other: _Space, edge: str | None) -> Diagnostic:
        declared = next((e for e in self.graph.declared if e.id == edge), None)
        span = op.span if declared is None or declared.span is None else declared.span
        here = f"`{op.id}` itself" if mine is None else mine.names
        owner = sorted(other.calls or other.data)[0]
        role, _, rest = owner.partition(".")
        label = rest.partition("@")[2]
        choice = f"{role}@{label}.FIELD" if label else f"{role}.FIELD"
        text = (
            f"delete this edge; a field of the other call comes by prompt, one row each: `inputs: {{SLOT: {choice}}}`"
        )
        helps = [Help(text=text if other.calls else "delete this edge, or `mix` the data sets into one")]
        return diagnose("FR0334", span, helps=helps, op=op.id, here=here, there=other.names)


def _apart(one: frozenset[str], other: frozenset[str]) -> bool:
    return bool(one) and bool(other) and not one & other


def _partners(graph: Graph) -> Mapping[str, frozenset[str]]:
    """Calls of generate that talk with one environment make samples of the same episodes."""
    found: dict[str, set[str]] = {}
    for edge in graph.declared:
        if edge.kind is EdgeKind.INTERACTION:
            found.setdefault(edge.target, set()).add(edge.source)
    return {id: frozenset(group) for group in found.values() for id in group}


def _uneven(graph: Graph) -> Iterator[Diagnostic]:
    """FR0350 for a generator that has another number of samples than the first one of its interaction."""
    ops = {op.id: op for op in graph.ops}
    first: dict[str, Op] = {}
    for edge in graph.declared:
        op = ops.get(edge.source) if edge.kind is EdgeKind.INTERACTION else None
        if op is None or not isinstance(op.params, GenerateParams):
            continue
        other = first.setdefault(edge.target, op)
        assert isinstance(other.params, GenerateParams)
        if op.params.samples_per_prompt != other.params.samples_per_prompt:
            facts: dict[str, Any] = {"samples": op.params.samples_per_prompt, "theirs": other.params.samples_per_prompt}
            yield diagnose("FR0350", edge.span, op=op.id, other=other.id, step=edge.target, **facts)


def _misfits(graph: Graph, found: _Spaces) -> Iterator[Diagnostic]:
    """FR0223 for one value of a prompt from each of its samples, and for values of tokens where there are none."""
    writers = (Kind.FUNCTION, Kind.REWARD)
    for op in graph.ops:
        if graph.role(op.role).kind not in writers:
            continue
        scope = found.records.scope[op.id]
        for field in op.outputs:
            span = op.spans.get(f"outputs.{field.name}") or op.span
            if field.unit is Unit.PROMPT and op.granularity is Granularity.SAMPLE and found.of[op.id].calls:
                why = "the samples of a prompt would each write a value of their own"
                fix = f"write `unit: sample` for `{field.name}`, or draw `{op.id}` above the generator"
                rows = "single samples"
            elif field.unit is Unit.TOKEN and not ({"tokens", "latents"} & scope.keys()):
                why = "a column per token is as long as `tokens`"
                fix = f"draw an edge from a `generate` to `{op.id}`"
                rows = "rows without tokens"
            else:
                continue
            yield diagnose("FR0223", span, op=op.id, rows=rows, name=field.name, unit=field.unit, why=why, fix=fix)


def _unknown_fields(graph: Graph, found: Records) -> Iterator[Diagnostic]:
    """FR0225 for each column of an edge's `fields` that its source does not have; of derived edges the first tells."""
    ops = {op.id for op in graph.ops}
    for edge in graph.declared:
        source = edge.target if edge.kind is EdgeKind.INTERACTION else edge.source
        if edge.derived or source not in ops:
            continue
        known = sorted(found.below[source])
        yield from (_unknown(edge, source, name, known) for name in edge.fields if name not in known)


def _unknown(edge: Edge, source: str, name: str, known: list[str]) -> Diagnostic:
    near = near_names(name, known)
    helps = [Help(text=f"a column with a near name exists: `{near[0]}`")] if near else []
    shown = ", ".join(known[:LISTED]) + (", …" if len(known) > LISTED else "")
    return diagnose("FR0225", edge.span, helps=helps, name=name, source=source, known=shown)
