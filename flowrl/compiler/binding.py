"""Binding: from an input's name to the one op that fills it (LANGUAGE.md, "Binding"). Takes a graph, its records and an
input, gives the bound input or what is wrong with it. Changes no graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set

from msgspec.structs import replace

from flowrl.diag.diagnostic import Diagnostic, Help, Label, diagnose
from flowrl.diag.near import near_names
from flowrl.diag.span import Span
from flowrl.graph.graph import Edge, EdgeKind, Graph, Input, Kind, Op
from flowrl.graph.once import once
from flowrl.graph.params import DataParams
from flowrl.graph.records import Records
from flowrl.graph.signatures import FIELDS, OpSignature, makers
from flowrl.graph.types import Field, dtypes_agree

TOP = ("ref_top_log_probs", "ref_top_tokens")
"""What a scorer writes only with `top_k`."""
ANY_DATA = "data.NAME"
"""A data set in a help: a graph knows only those that edges name."""
PROMPT = "prompt"
"""What every op reads the data through: without it upstream, all columns of the data are missing too."""


def bind(graph: Graph, records: Records, op: Op, input: Input) -> Input | Diagnostic | None:
    """The input with its source; a diagnostic; or None for an optional input that nothing upstream makes."""
    find = _found if input.chosen is None else _chosen
    source = find(graph, records, op, input)
    if not isinstance(source, Op):
        return source
    return _typed(op, replace(input, source=source.id), source)


def space(graph: Graph, records: Records, id: str) -> frozenset[str]:
    """The calls of generate whose samples the rows of op `id` belong to; empty for prompt rows."""
    return _calls(graph) & (records.ancestors[id] | {id})


@once
def _calls(graph: Graph) -> frozenset[str]:
    return frozenset(op.id for op in graph.ops if op.method == "generate")


def column(op: Op, name: str) -> Field | None:
    return next((field for field in op.outputs if field.name == name), None)


def _found(graph: Graph, records: Records, op: Op, input: Input) -> Op | Diagnostic | None:
    producers = sorted(records.scope[op.id].get(input.field, frozenset()))
    if len(producers) == 1:
        return graph.op(producers[0])
    if producers:
        return _ambiguous(graph, records, op, input, producers)
    return None if input.optional else missing(graph, records, op, input.field, input.span)


def _chosen(graph: Graph, records: Records, op: Op, input: Input) -> Op | Diagnostic:
    """What `inputs:` names: in the record, or in the sample space of another call (one row for each prompt)."""
    candidates = _owned(graph, op, input)
    producers = [candidate for candidate in candidates if column(candidate, input.field) is not None]
    if not producers:
        return _no_column(graph, op, input, candidates)
    producer = producers[0]
    own, other = space(graph, records, op.id), space(graph, records, producer.id)
    crosses = bool(own) and bool(other) and own.isdisjoint(other)
    here, there = _data_of(graph, records, op.id), _data_of(graph, records, producer.id)
    if crosses and here and there and here.isdisjoint(there) and not _other_call(op, input, producer):
        return _other_prompts(op, input, here, there)
    if producer.id in records.ancestors[op.id] or (crosses and not _other_call(op, input, producer)):
        return producer
    return _not_upstream(op, input, producer, crosses)


def _data_of(graph: Graph, records: Records, id: str) -> frozenset[str]:
    """The data sets whose prompts the rows of op `id` belong to."""
    return _sets(graph) & (records.ancestors[id] | {id})


@once
def _sets(graph: Graph) -> frozenset[str]:
    return frozenset(op.id for op in graph.ops if isinstance(op.params, DataParams))


def _other_prompts(op: Op, input: Input, here: Iterable[str], there: Iterable[str]) -> Diagnostic:
    """FR0334 for a field that crosses by prompt to rows of other prompts."""
    names = [" and ".join(f"`{name}`" for name in sorted(sets)) for sets in (here, there)]
    helps = [Help(text=f"feed both calls of generate from {names[0]}: a field of another call comes by prompt")]
    return diagnose("FR0334", input.span or op.span, helps=helps, op=op.id, here=names[0], there=names[1])


def _other_call(op: Op, input: Input, producer: Op) -> bool:
    """Whether the name means the reader's own call, which the flow does not make: `role.field` read at `@label`."""
    named = "@" in (input.chosen or "")
    return op.label is not None and producer.label is None and not named


def _not_upstream(op: Op, input: Input, producer: Op, crosses: bool) -> Diagnostic:
    """What `inputs:` names is made, but not upstream of its reader."""
    also = [Label(producer.span, f"`{producer.id}` makes it")] if producer.span is not None else []
    call = f"{producer.id}@{op.label}" if crosses else producer.id
    fix = f"draw the edge `- {call} -> {op.id}`"
    field = f"{input.chosen}.{input.field}"
    return diagnose("FR0206", input.span or op.span, also=also, op=op.id, field=field, fix=fix)


def _owned(graph: Graph, op: Op, input: Input) -> list[Op]:
    """Ops of the named role and label. Without a label: those with the reader's own label, else those without one."""
    owner = input.chosen or ""
    role, _, label = owner.partition("@")
    named = _ops_of(graph).get(role, ())
    if label:
        return [o for o in named if o.label == label]
    own = [o for o in named if o.label == op.label and o.id != op.id]
    return own or [o for o in named if o.label is None]


@once
def _ops_of(graph: Graph) -> Mapping[str, Sequence[Op]]:
    """The ops of each role."""
    found: dict[str, list[Op]] = {}
    for op in graph.ops:
        found.setdefault(op.role, []).append(op)
    return found


def _typed(op: Op, input: Input, source: Op) -> Input | Diagnostic:
    have = column(source, input.field)
    assert have is not None
    if have.unit.rank < input.unit.rank:
        return _unfit("FR0208", op, input, source, str(input.unit), str(have.unit))
    if not dtypes_agree(have.dtype, input.dtype):
        return _unfit("FR0209", op, input, source, f"`{input.dtype}`", f"`{have.dtype}`")
    return input


def _unfit(code: str, op: Op, input: Input, source: Op, want: str, have: str) -> Diagnostic:
    also = [Label(source.span, f"`{source.id}` makes it")] if source.span is not None else []
    return diagnose(
        code,
        input.span or op.span,
        also=also,
        op=op.id,
        slot=input.slot,
        producer=source.id,
        field=input.field,
        want=want,
        have=have,
    )


def missing(graph: Graph, records: Records, op: Op, field: str, span: Span | None = None) -> Diagnostic:
    """FR0206 where the column is named (`span`) or at the op, with the edge to draw, the op that makes such a field, or
    the column to keep."""
    same_call = makers_here(graph, op, field)
    also = [Label(o.span, f"`{o.id}` makes it") for o in same_call if o.span is not None][:1]
    astray = _fed_in_its_place(graph, op)
    if astray is not None:
        also = [Label(astray.span, f"nothing reads `{astray.target}`")] if astray.span is not None else []
        fix = f"`{astray.target}` has a near name: write `- {astray.source} -> {op.id}`"
        return diagnose("FR0206", span or op.span, also=also, op=op.id, field=field, fix=fix)
    fix = _fix(graph, records, op, field, same_call)
    return diagnose("FR0206", span or op.span, also=also, op=op.id, field=field, fix=fix)


def _fed_in_its_place(graph: Graph, op: Op) -> Edge | None:
    """For a call that no edge feeds: the edge into the same op under a near label, where nothing reads that one."""
    data = [edge for edge in graph.declared if edge.kind is EdgeKind.DATA]
    if op.label is None or any(edge.target == op.id for edge in data):
        return None
    unread = {o.label or "": o.id for o in graph.ops if (o.role, o.method) == (op.role, op.method)}
    for edge in data:
        unread = {label: id for label, id in unread.items() if id != edge.source}
    near = near_names(op.label, unread)
    return next((edge for edge in data if near and edge.target == unread[near[0]]), None)


def makers_here(graph: Graph, op: Op, field: str) -> list[Op]:
    """Ops of the flow that make the field, of the op's own call if there are any: an edge from the first is the fix."""
    here = [o for o in graph.ops if o.id != op.id and column(o, field) is not None]
    return [o for o in here if o.label == op.label] or here


def _fix(graph: Graph, records: Records, op: Op, field: str, here: Sequence[Op]) -> str:
    narrow = _narrow(graph, records, op, field, {o.id for o in here})
    if narrow is not None:
        return f"`{narrow.id}` carries only {', '.join(narrow.fields)}: add `{field}` to its `fields`"
    turned = next((o for o in here if any((e.source, e.target) == (op.id, o.id) for e in graph.declared)), None)
    if turned is not None:
        return f"`{turned.id}` makes it, and the edge between them points away from it: turn it round"
    if here:
        return f"`{here[0].id}` makes it: draw the edge `- {here[0].id} -> {op.id}`"
    if field == PROMPT and not any(_is_data(graph, o) for o in graph.ops):
        return f"a data set has it: draw the edge `- {ANY_DATA} -> {op.id}`"
    scorers = [o for o in graph.ops if o.method == "log_probs" and graph.role(o.role).kind is Kind.SCORER]
    if field in TOP and scorers:
        return f"say how many likely tokens `{scorers[0].role}` writes: `{scorers[0].role}: {{top_k: 64}}`"
    known = makers(field)
    if known:
        ops = " or ".join(f"`{s.method}` of {_maker(s)}" for s in known)
        return f"it is made by {ops}: draw an edge from there"
    if field in FIELDS:
        return f"no op here makes `{field}`: choose a column for it with `inputs: {{{field}: role.field}}`"
    near = near_names(field, records.scope[op.id])
    if near:
        return f"a field with a near name is in scope: `{near[0]}`"
    data = [o for o in graph.ops if _is_data(graph, o) and o.id in records.ancestors[op.id]]
    if data:
        return f"keep the column: `{_keeper(data[0])}: {{keep: [{field}]}}`"
    return "draw an edge from the op that makes it"


def _narrow(graph: Graph, records: Records, op: Op, field: str, makers: Set[str]) -> Edge | None:
    """The edge on a way from a maker of the field to the op that leaves it behind, as its `fields` say."""
    on_way = {op.id, *records.ancestors[op.id]}
    edges = (e for e in graph.declared if e.fields and field not in e.fields and e.target in on_way)
    return next((e for e in edges if e.source in makers or makers & records.ancestors.get(e.source, frozenset())), None)


def _keeper(data: Op) -> str:
    """The data set that can keep one more column: of a mix, a source."""
    sources = list(data.params.sources) if isinstance(data.params, DataParams) else []
    return f"data.{sources[0]}" if sources else data.id


def _is_data(graph: Graph, op: Op) -> bool:
    return graph.role(op.role).kind is Kind.DATA


def _maker(signature: OpSignature) -> str:
    kind = signature.kind
    article = "an" if kind in (Kind.ESTIMATOR, Kind.ENV) else "a"
    return f"{article} {kind}" + (f" with head {signature.heads[0]}" if signature.heads == ("scalar",) else "")


def _ambiguous(graph: Graph, records: Records, op: Op, input: Input, producers: Sequence[str]) -> Diagnostic:
    labels = [label for p in producers for label in _arrivals(graph, records, op, input.field, p)]
    owners = [_owner(graph.op(p)) for p in producers]
    return diagnose(
        "FR0207",
        labels[0].span if labels else op.span,
        also=labels[1:],
        op=op.id,
        field=input.field,
        slot=input.slot,
        producers=" and ".join(f"`{p}`" for p in producers),
        choice=f"{owners[0]}.{input.field}",
    )


def _owner(op: Op) -> str:
    """How `inputs:` names the op."""
    return op.role if op.label is None else f"{op.role}@{op.label}"


def _arrivals(graph: Graph, records: Records, op: Op, field: str, producer: str) -> list[Label]:
    """The last edge on which this producer's field comes, else the producer itself."""
    ids = set(records.origin(producer, field, op.id))
    last = [e for e in graph.declared if e.id in ids and op.id in (e.target, e.source) and e.span is not None]
    if last and last[0].span is not None:
        return [Label(last[0].span, f"`{producer}` comes along `{last[0].id}`")]
    span = graph.op(producer).span
    return [] if span is None else [Label(span, f"`{producer}`")]


def _no_column(graph: Graph, op: Op, input: Input, candidates: Iterable[Op]) -> Diagnostic:
    columns = sorted({field.name for o in candidates for field in o.outputs})
    owner = input.chosen or ""
    if not columns:
        calls = sorted({_owner(o) for o in graph.ops if o.role == owner.partition("@")[0] and o.outputs})
        if calls:
            problem = f"`{owner}` is not called; `{'`, `'.join(calls)}` {'is' if len(calls) == 1 else 'are'}"
            fix = f"write `{calls[0]}.{input.field}`, or draw an edge to a call of `{owner}`"
            return diagnose("FR0219", input.span or op.span, problem=problem, fix=fix)
        problem = f"no op of `{owner}` is in the flow"
        return diagnose("FR0219", input.span or op.span, problem=problem, fix="draw an edge to it first")
    near = near_names(input.field, columns)
    helps = [Help(text=f"a column with a near name exists: `{owner}.{near[0]}`")] if near else []
    fix = f"`{owner}` makes: {', '.join(columns)}"
    return diagnose(
        "FR0219", input.span or op.span, helps=helps, problem=f"`{owner}` makes no `{input.field}`", fix=fix
    )
