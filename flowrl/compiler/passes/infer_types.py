"""infer_types: bind every input to one producer and lower declared edges to direct ones."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from flowrl.compiler.binding import PROMPT, bind, makers_here
from flowrl.compiler.edges import data_edges, state_edges
from flowrl.compiler.frames import misaligned
from flowrl.diag.diagnostic import Diagnostic, FlowError, Help, diagnose
from flowrl.graph.algorithms import find_cycle
from flowrl.graph.graph import Edge, EdgeKind, Graph, Input, Op
from flowrl.graph.judges import judge_of
from flowrl.graph.params import ForwardParams, GenerateParams, UpdateParams
from flowrl.graph.records import Records, records
from flowrl.graph.signatures import FIELDS

DEFERRED = "old_log_probs"
"""Left to insert_log_probs, which knows whether the rollout's will do; a choice by `inputs:` stands."""


def infer_types(graph: Graph) -> Graph:
    """Bind inputs by the rules of records, add read-before-write edges, let temperature follow the tokens.

    before: generate -> score -> estimate -> update            (declared; update reads tokens, advantages)
    after:  generate -> update [tokens]  origin: all three edges
            estimate -> update [advantages]  origin: estimate -> update

    Requires: acyclic declared edges. Ensures: every input but `old_log_probs` has one source of a unit and type that
    fit; columns per token that meet are of one call of generate; every lowered data edge names its declared ones; state
    edges stand; trainable roles are marked.
    """
    found = records(graph.ops, graph.roles, graph.declared)
    faults: list[_Fault] = []
    ops = tuple(_bound(graph, found, op, faults) for op in graph.ops)
    if faults:
        raise FlowError(_causes(graph, found, faults))
    _refuse_round(ops)
    apart = tuple(misaligned(ops))
    if apart:
        raise FlowError(apart)
    ops = _with_temperature(ops)
    updates = [op for op in ops if op.method == "update"]
    trainable = {op.role for op in updates}
    edges = (
        *(edge for op in ops for edge in data_edges(op, found)),
        *_interactions(graph),
        *state_edges(updates, ops),
    )
    roles = tuple(replace(role, trainable=role.name in trainable) for role in graph.roles)
    return replace(graph, ops=ops, edges=edges, roles=roles)


@dataclass(frozen=True, slots=True)
class _Fault:
    op: Op
    input: Input
    diagnostic: Diagnostic


def _causes(graph: Graph, found: Records, faults: list[_Fault]) -> list[Diagnostic]:
    """One diagnostic for each cause: a field that the edge drawn for another one would bring along is left out."""
    absent = [each for each in faults if each.diagnostic.code == "FR0206" and each.input.chosen is None]
    brings = {id(each): _brought(graph, found, each) for each in absent}
    absent.sort(key=lambda each: (len(found.ancestors[each.op.id]), -len(brings[id(each)])))
    causes: list[_Fault] = []
    for each in absent:
        if each.input.field != PROMPT and _is_without_data(graph, found, each, absent):
            continue
        upstream = {each.op.id, *found.ancestors[each.op.id]}
        if not any(cause.op.id in upstream and each.input.field in brings[id(cause)] for cause in causes):
            causes.append(each)
    return [each.diagnostic for each in faults if each not in absent or each in causes]


def _is_without_data(graph: Graph, found: Records, fault: _Fault, absent: list[_Fault]) -> bool:
    """Whether a column that no op makes is missing because an op upstream has no prompts: it comes with their data."""
    upstream = found.ancestors[fault.op.id]
    lost = any(other.input.field == PROMPT and other.op.id in upstream for other in absent)
    return lost and not makers_here(graph, fault.op, fault.input.field) and fault.input.field not in FIELDS


def _brought(graph: Graph, found: Records, fault: _Fault) -> frozenset[str]:
    """What comes into scope with the edge that the diagnostic says to draw."""
    makers = makers_here(graph, fault.op, fault.input.field)
    if not makers:
        return frozenset()
    return frozenset(found.scope[makers[0].id]) | {field.name for field in makers[0].outputs}


def _bound(graph: Graph, found: Records, op: Op, faults: list[_Fault]) -> Op:
    inputs: list[Input] = []
    for input in op.inputs:
        if input.slot == DEFERRED and input.chosen is None:
            inputs.append(input)
            continue
        result = bind(graph, found, op, input)
        if isinstance(result, Diagnostic):
            written = graph.op(judge_of(op))  # what an inner call lacks, the judge lacks
            told = bind(graph, found, written, input)
            faults.append(_Fault(written, input, told if isinstance(told, Diagnostic) else result))
        elif result is not None:
            inputs.append(result)
    return replace(op, inputs=tuple(inputs))


def _refuse_round(ops: tuple[Op, ...]) -> None:
    """FR0302 where `inputs:` of two calls of generate reach into each other; edges alone never go round here."""
    pairs = [(i.source, op.id) for op in ops for i in op.inputs if i.source is not None]
    cycle = find_cycle((op.id for op in ops), pairs)
    if cycle is None:
        return
    chosen = (i for op in ops if op.id in cycle for i in op.inputs if i.source in cycle and i.chosen is not None)
    span = next((i.span for i in chosen if i.span is not None), None)
    fix = "delete one of these choices; only weights (`=>`) cross from one step to the next"
    raise FlowError(diagnose("FR0302", span, helps=[Help(text=fix)], path=" -> ".join((*cycle, cycle[0]))))


def _interactions(graph: Graph) -> tuple[Edge, ...]:
    return tuple(replace(e, origin=(e.id,)) for e in graph.declared if e.kind is EdgeKind.INTERACTION)


def _with_temperature(ops: tuple[Op, ...]) -> tuple[Op, ...]:
    """Log-probs are of the distribution that was sampled from; greedy calls (temperature 0) count as 1."""
    sampled = {op.id: op.params.temperature or 1.0 for op in ops if isinstance(op.params, GenerateParams)}
    return tuple(_tempered(op, sampled) for op in ops)


def _tempered(op: Op, sampled: dict[str, float]) -> Op:
    if not isinstance(op.params, ForwardParams | UpdateParams):
        return op
    source = next((i.source for i in op.inputs if i.slot in ("tokens", "latents")), None)
    if source is None or source not in sampled:
        return op
    return replace(op, params=replace(op.params, temperature=sampled[source]))
