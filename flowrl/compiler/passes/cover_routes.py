"""cover_routes: every value of a router's column has exactly one reward, and that reward the columns it reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flowrl.diag.diagnostic import Diagnostic, FlowError, Label, diagnose
from flowrl.diag.near import near_names
from flowrl.graph.graph import Graph, Op
from flowrl.graph.judges import judge_method, judge_of
from flowrl.graph.params import DataParams
from flowrl.graph.routes import REST, Router, route_of, router_of, values_of


def cover_routes(graph: Graph) -> Graph:
    """Refuse routers that leave samples without a reward or give them two; the graph itself is unchanged.

    before: data.train mixes math, code (tag domain) · reward routes domain: {math: rule}
    after:  FR0235: no route of `reward` takes `code` of `domain`

    A key of `routes` is a value, several with commas, or `*` for the rest. Where the column is the tag of a mix the
    values are the names of its sources, and coverage is exact; of any other column only doubled values can be seen.

    Requires: bound inputs. Ensures: no value has two routes; of a tag every source has one, every route a source, and
    every routed reward finds the columns that it reads in its own sources.
    """
    found: list[Diagnostic] = []
    for role in dict.fromkeys(op.role for op in graph.ops if router_of(op) is not None):
        calls = [op for op in graph.ops if op.role == role]
        doubled = list(_doubled(calls[0]))
        found += doubled
        if doubled:
            continue
        mixes = [(op, mix) for op in calls if (mix := _mix_of(graph, op)) is not None]
        found += [problem for op, mix in mixes for problem in _unrouted(graph, op, mix)]
        if len(mixes) == len(calls):  # another call may bring values that are seen only when data is read
            found += _idle(calls[0], {tag for op, mix in mixes for tag in _tags(graph, op, mix)})
        found += [problem for op, mix in mixes for problem in _lacking(graph, op, mix)]
    if found:
        raise FlowError(found)
    return graph


def _routed(op: Op) -> Router:
    router = router_of(op)
    assert router is not None, op.id
    return router


def _mix_of(graph: Graph, op: Op) -> Op | None:
    """The mix whose tag the router reads, if it is one."""
    router = _routed(op)
    source = next((i.source for i in op.inputs if i.slot == router.by), None)
    mix = next((o for o in graph.ops if o.id == source), None)
    return mix if mix is not None and isinstance(mix.params, DataParams) and mix.params.tag == router.by else None


def _sources(mix: Op) -> Mapping[str, DataParams]:
    assert isinstance(mix.params, DataParams)
    return mix.params.sources


def _tags(graph: Graph, op: Op, mix: Op) -> tuple[str, ...]:
    """The sources whose samples come to the router: all, or behind other routers of the same tag what they send it."""
    if not op.derived:
        return tuple(_sources(mix))
    outer = [o for o in graph.ops if router_of(o) is not None and any(i.source == op.id for i in o.inputs)]
    if any(_mix_of(graph, o) is not mix for o in outer):
        return tuple(_sources(mix))
    sent = {tag for o in outer for tag in _tags(graph, o, mix) if route_of(_routed(o).routes, tag) == op.role}
    return tuple(tag for tag in _sources(mix) if tag in sent)


def _place(op: Op, key: str) -> Any:
    return op.spans.get(f"routes.{key}") or op.spans.get("routes") or op.span


def _doubled(op: Op) -> Iterator[Diagnostic]:
    first: dict[str, tuple[str, str]] = {}
    for key, reward in _routed(op).routes.items():
        for value in values_of(key):
            if value not in first:
                first[value] = (key, reward)
                continue
            other, earlier = first[value]
            span = _place(op, other)
            also = [] if span is None else [Label(span, f"`{value}` goes to `{earlier}`")]
            yield diagnose("FR0236", _place(op, key), also=also, value=value, reward=reward, other=earlier)


def _unrouted(graph: Graph, op: Op, mix: Op) -> Iterator[Diagnostic]:
    router = _routed(op)
    left = [tag for tag in _tags(graph, op, mix) if route_of(router.routes, tag) is None]
    if not left:
        return
    span = mix.spans.get(f"mix.{left[0]}") or mix.span
    also = [] if span is None else [Label(span, f"`{mix.id}` draws from `{left[0]}`")]
    tags = " and ".join(f"`{tag}`" for tag in left)
    fix = f'add a route: `{", ".join(left)}: REWARD`, or `"{REST}": REWARD` for all the rest'
    span = op.spans.get("routes") or op.span
    yield diagnose("FR0235", span, also=also, role=op.role, by=router.by, tags=tags, fix=fix)


def _idle(op: Op, tags: set[str]) -> Iterator[Diagnostic]:
    """FR0237 for each route that no source comes to, also one for the rest where nothing is left."""
    routes = _routed(op).routes
    named = {value for key in routes for value in values_of(key)}
    for key, reward in routes.items():
        for value in values_of(key):
            if value in tags or (value == REST and tags - named):
                continue
            problem = f"no source is named `{value}`" if value != REST else "every source has a route of its own"
            near = near_names(value, sorted(tags - named)) if value != REST else []
            known = ", ".join(sorted(tags))
            fix = f"write `{near[0]}`, a near name" if near else f"take it out; the sources are: {known}"
            yield diagnose("FR0237", _place(op, key), problem=problem, reward=reward, fix=fix)


def _lacking(graph: Graph, op: Op, mix: Op) -> Iterator[Diagnostic]:
    """FR0238 for a routed reward that reads what one of its own sources does not keep."""
    for tag in _tags(graph, op, mix):
        reward = route_of(_routed(op).routes, tag)
        for inner in graph.ops:
            if (inner.role, inner.label, judge_method(inner.method)) == (reward, op.label, "score"):
                yield from _lacks(inner, tag, _sources(mix)[tag], mix)


def _lacks(reader: Op, tag: str, source: DataParams, mix: Op) -> Iterator[Diagnostic]:
    assert isinstance(mix.params, DataParams)
    for input in reader.inputs:
        kept = input.source == mix.id and input.field in mix.params.keep
        if not kept or input.optional or source.has(input.field):
            continue
        span = mix.spans.get(f"mix.{tag}") or mix.span
        also = [] if span is None else [Label(span, f"samples of `{tag}` come from here")]
        fix = f"keep it there: `{tag}: {{keep: [{input.field}]}}`, or route `{tag}` to another reward"
        yield diagnose("FR0238", reader.span, also=also, op=judge_of(reader), field=input.field, source=tag, fix=fix)
