"""DESIGN section 3, "Preserved", on random flows of every kind of op (tests/graph/anyflows.py): what each op reads,
what goes and why, what filters decide. Everything is recomputed here by backward searches over the declared edges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from flowrl.compiler.passes.pipeline import run_passes
from flowrl.graph.graph import Edge, EdgeKind, Graph, Kind, Op
from flowrl.graph.params import ForwardParams
from flowrl.graph.rates import rows_per_step
from flowrl.graph.text import graph_digest, parse_graph, print_graph, without_spans
from tests.graph.anyflows import above, any_flows, inner_call, links, producers

REASONS = {
    "unread_at_zero_kl",
    "unread",
    "nothing_read",
    "fused_forward",
    "log_probs_not_needed",
    "removed_by_user",
}
WANTED = ("update", "score", "compare", "select", "step")
Bound = Mapping[tuple[str, str], str]
"""(op, slot) → producer."""


@dataclass
class TextAfterEachPass:
    """An instrument: the text of the graph reads back, whatever pass has just run (those that change nothing aside)."""

    seen: list[str] = field(default_factory=list[str])
    last: Graph | None = None

    def before(self, name: str, graph: Graph) -> None:
        if not self.seen:
            self.after("lowered", graph)

    def after(self, name: str, graph: Graph) -> None:
        self.seen.append(name)
        plain = replace(graph, passes=())
        if plain != self.last:
            assert parse_graph(print_graph(graph)) == without_spans(graph), name
        self.last = plain


def _bound(flow: Graph) -> Bound:
    """The declared producer of every input."""
    found: dict[tuple[str, str], str] = {}
    for op in flow.ops:
        for slot in op.inputs:
            if slot.chosen is not None:
                role, _, label = slot.chosen.partition("@")
                makers = [o for o in flow.ops if o.role == role and any(f.name == slot.field for f in o.outputs)]
                own = [o for o in makers if o.label == (label or None)]
                (found[op.id, slot.slot],) = [o.id for o in own or makers]
            else:
                (found[op.id, slot.slot],) = producers(op.id, slot.field, flow.ops, flow.declared)
    return found


def _live(flow: Graph, bound: Bound) -> set[str]:
    """What is wanted for itself, and all that it reads; members of an interaction live together."""
    tied = [(e.source, e.target) for e in flow.declared if e.kind is EdgeKind.INTERACTION]
    pairs = [(producer, reader) for (reader, _), producer in bound.items()] + tied + [(b, a) for a, b in tied]
    roots = {op.id for op in flow.ops if op.method in WANTED}
    return roots.union(*(above(root, pairs) for root in roots))


def _deciding(flow: Graph, space: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """The filters above each op, and for an update all of its samples'."""
    pairs = [(a, b) for a, b, _, _ in links(flow.declared, flow.ops)]
    filters = [op.id for op in flow.ops if op.method == "select"]
    found: dict[str, set[str]] = {}
    for op in flow.ops:
        upstream = above(op.id, pairs)
        shares = {f for f in filters if op.method == "update" and space[f] & space[op.id]}
        found[op.id] = (upstream & set(filters)) | shares
    return found


def _spaces(flow: Graph) -> dict[str, set[str]]:
    """The calls of generate above each op, itself if it is one, nothing above a generator."""
    ways = [(a, b) for a, b, _, _ in links(flow.declared, flow.ops)]
    calls = {op.id for op in flow.ops if op.method == "generate"}
    cut = [(a, b) for a, b in ways if b not in calls]
    return {op.id: ({op.id} | above(op.id, cut)) & calls for op in flow.ops}


def _twins(flow: Graph, bound: Bound, live: set[str], deciding: Mapping[str, set[str]]) -> list[list[str]]:
    """Live frozen forwards of one model with the same inputs and the same filters over them."""
    fed = {e.target for e in flow.declared if e.kind is EdgeKind.WEIGHTS}
    groups: dict[object, list[str]] = {}
    for op in flow.ops:
        role = flow.role(op.role)
        if op.id not in live or not isinstance(op.params, ForwardParams) or role.kind is not Kind.SCORER:
            continue
        weights = role.name if role.name in fed else f"initial {role.model}"
        reads = tuple(sorted((i.slot, bound[op.id, i.slot]) for i in op.inputs))
        groups.setdefault((weights, reads, tuple(sorted(deciding[op.id]))), []).append(op.id)
    return [sorted(group) for group in groups.values()]


def _between(pairs: Iterable[tuple[str, str]], start: str, end: str) -> set[tuple[str, str]]:
    """Pairs on some way from start to end."""
    every = list(pairs)
    reach_end = above(end, every) | {end}
    from_start = above(start, [(b, a) for a, b in every]) | {start}
    return {(a, b) for a, b in every if a in from_start and b in reach_end}


def _within_step(edges: Iterable[Edge]) -> list[tuple[str, str]]:
    ordered = (EdgeKind.DATA, EdgeKind.STATE)
    return [(e.source, e.target) for e in edges if e.kind in ordered and not e.tokens]


@given(any_flows())
@settings(max_examples=200, deadline=None)
def test_whatever_is_read_stays_bound_and_whatever_goes_has_a_reason(flow: Graph) -> None:
    bound, spaces = _bound(flow), _spaces(flow)
    live, deciding = _live(flow, bound), _deciding(flow, spaces)
    texts = TextAfterEachPass()

    done, _ = run_passes(flow, [texts])

    left = {op.id for op in done.ops}
    twin: dict[str, str] = {}
    for group in _twins(flow, bound, live, deciding):
        (stays,) = left & set(group)
        twin |= dict.fromkeys(group, stays)
    assert len(texts.seen) == len(done.passes) + 1
    kept = {id for id in live if twin.get(id, id) == id}
    assert {op.id for op in done.ops} == kept
    expected = {key: twin.get(p, p) for key, p in bound.items() if key[0] in kept}
    assert {(op.id, i.slot): i.source for op in done.ops for i in op.inputs} == expected
    data = [e for e in done.edges if e.kind is EdgeKind.DATA]
    assert {(e.target, slot): e.source for e in data for slot in e.fields} == expected
    reasons = {removal.id: removal.reason for removal in done.removed}
    assert set(reasons.values()) <= REASONS
    assert {op.id for op in flow.ops} - kept == {op.id for op in flow.ops} & reasons.keys()
    assert {id for id, reason in reasons.items() if reason == "fused_forward" and "." in id} == live - kept
    _check_declared(flow, done, bound, live, twin)
    _check_filters(done, deciding)
    _check_judges(flow, done)


def _check_declared(flow: Graph, done: Graph, bound: Bound, live: set[str], twin: Mapping[str, str]) -> None:
    """Each declared edge is an origin of a lowered one or removed; the two are disjoint; origins lie on ways from
    producer to reader, and what is removed lies on none. An edge into a judge also lies where the one into its inner
    call does, which the flow did not write."""
    declared = {e.id: e for e in flow.declared}
    origins = {id for e in done.edges for id in e.origin}
    removed = {removal.id for removal in done.removed} & declared.keys()
    assert origins | removed == declared.keys()
    assert not origins & removed
    same = {id: {id, *(other for other, first in twin.items() if first == twin.get(id, id))} for id in live}
    every = [(a, b) for a, b, _, _ in links(flow.declared, flow.ops)]
    for edge in done.edges:
        if edge.kind in (EdgeKind.WEIGHTS, EdgeKind.INTERACTION):
            assert edge.origin == (edge.id,)
            continue
        allowed = {
            pair
            for a in same.get(edge.source, {edge.source})
            for b in same[edge.target]
            for pair in _between(every, a, b)
        }
        for id in edge.origin:
            ends = (declared[id].source, declared[id].target)
            turned = declared[id].kind is EdgeKind.INTERACTION
            asked = (ends[0], inner_call(ends[1]))
            assert (ends[::-1] if turned else ends) in allowed or asked in allowed, (id, edge.id)
    alive = [(a, b, id, fields) for a, b, id, fields in links(flow.declared, flow.ops) if {a, b} <= live]
    for (reader, slot), producer in bound.items():
        if reader not in live or any(i.slot == slot and i.chosen is not None for i in flow.op(reader).inputs):
            continue
        column = next(i.field for i in flow.op(reader).inputs if i.slot == slot)
        passing = [way for way in alive if not way[3] or column in way[3]]
        writers = {op.id for op in flow.ops if any(f.name == column for f in op.outputs)}
        plain = [way for way in passing if way[0] == producer or way[0] not in writers]
        on_way = _between([(a, b) for a, b, _, _ in plain], producer, reader)
        carried = {id for a, b, id, _ in plain if (a, b) in on_way and id is not None}
        assert not carried & removed, (reader, slot)


def _check_judges(flow: Graph, done: Graph) -> None:
    """A judge reads the answers of its own inner call, on as many rows; what is written into the judge stays wherever
    what is drawn into the inner call does."""
    origins = {id for e in done.edges for id in e.origin}
    known = {op.id: op for op in done.ops}
    judges = [op for op in done.ops if inner_call(op.id) in known and inner_call(op.id) != op.id]
    assert {op.role for op in judges} == {op.role for op in flow.ops if op.method in ("ask", "ask_pairs")}
    for judge in judges:
        inner = known[inner_call(judge.id)]
        assert [i.source for i in judge.inputs] == [inner.id]
        assert rows_per_step(done, inner) == rows_per_step(done, judge)
        fed = {e.source for e in flow.declared if e.target == inner.id}
        assert {e.source for e in flow.declared if e.target == judge.id} == {*fed, inner.id}
        for source in fed:
            assert f"{source} -> {inner.id}" not in origins or f"{source} -> {judge.id}" in origins
        (brought,) = (e for e in done.edges if e.target == inner.id and "response" in e.fields)
        written = {f"{source} -> {judge.id}" for source in fed}
        assert written & set(brought.origin)


def _check_filters(done: Graph, deciding: Mapping[str, set[str]]) -> None:
    pairs = _within_step(done.edges)
    place = {op.id: index for index, op in enumerate(done.ops)}
    for op in done.ops:
        assert deciding[op.id] <= above(op.id, pairs)
        assert all(place[filter] < place[op.id] for filter in deciding[op.id])


@given(any_flows(most=24), st.integers(0, 2**32 - 1))
@settings(max_examples=110, deadline=None)
def test_the_order_of_writing_means_nothing(flow: Graph, seed: int) -> None:
    random = Random(seed)

    def mixed(items: tuple[object, ...]) -> tuple[object, ...]:
        return tuple(random.sample(items, len(items)))

    def turned(op: Op) -> Op:
        return replace(op, inputs=mixed(op.inputs), outputs=mixed(op.outputs))

    ops = tuple(turned(op) for op in flow.ops)
    other = replace(
        flow, ops=mixed(ops), roles=mixed(flow.roles), declared=mixed(flow.declared), models=mixed(flow.models)
    )
    one, two = run_passes(flow)[0], run_passes(other)[0]
    assert graph_digest(one) == graph_digest(two)
    assert graph_digest(parse_graph(print_graph(two))) == graph_digest(one)
    removed = {(removal.id, removal.reason) for removal in one.removed}
    assert removed == {(removal.id, removal.reason) for removal in two.removed}
