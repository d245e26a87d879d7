"""The verifier: what must hold of a graph, stage by stage. Takes a graph, gives the invariants it breaks as sentences
(none: it is sound). A broken invariant is a fault of a pass, never of the flow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from flowrl.graph.algorithms import find_cycle, reachable
from flowrl.graph.graph import Edge, EdgeKind, Graph, Input, Kind, Op
from flowrl.graph.lag import path_lags
from flowrl.graph.once import once
from flowrl.graph.rates import balance_of, step_rates, versions_per_step
from flowrl.graph.records import links_of
from flowrl.graph.rows import rows_of
from flowrl.graph.sdf import Deadlock, schedule
from flowrl.graph.types import dtypes_agree
from flowrl.graph.weights import forward_key, sharing_trainer

Check = Callable[[Graph], Iterator[str]]


def verify(graph: Graph) -> tuple[str, ...]:
    """Everything that does not hold at the graph's stage, which `graph.passes` tells. Where names do not fit, nothing
    else is looked at."""
    broken = tuple(line for since, told in _TOLD if since is None for line in told(graph))
    if broken:
        return broken
    return tuple(line for since, told in _TOLD if since in graph.passes for line in told(graph))


def unique_names(graph: Graph) -> Iterator[str]:
    yield from _repeated("model", (model.name for model in graph.models))
    yield from _repeated("role", (role.name for role in graph.roles))
    yield from _repeated("op", (op.id for op in graph.ops))
    yield from _repeated("declared edge", (edge.id for edge in graph.declared))
    yield from _repeated("edge", (f"{edge.kind} {edge.id}" for edge in graph.edges))


def owners_exist(graph: Graph) -> Iterator[str]:
    models = {model.name for model in graph.models}
    kinds = {role.name: role.kind for role in graph.roles}
    for op in graph.ops:
        stem = op.role if kinds.get(op.role) is Kind.DATA else f"{op.role}.{op.method}"
        spelled = stem + (f"@{op.label}" if op.label is not None else "")
        if op.role not in kinds:
            yield f"op {op.id} is of role {op.role}, which is not there"
        if op.id != spelled:
            yield f"op {op.id} should be named {spelled}"
    for role in graph.roles:
        if role.model is not None and role.model not in models:
            yield f"role {role.name} is of model {role.model}, which is not there"


def ends_exist(graph: Graph) -> Iterator[str]:
    ops, roles = {op.id for op in graph.ops}, {role.name for role in graph.roles}
    gone = {removal.id for removal in graph.removed}
    ops_ever, roles_ever = ops | gone, roles | gone
    for edge in graph.declared:
        known = roles_ever if edge.kind is EdgeKind.WEIGHTS else ops_ever
        yield from (f"declared edge {edge.id} ends at {end}" for end in (edge.source, edge.target) if end not in known)
    for edge in graph.edges:
        known = roles if edge.kind is EdgeKind.WEIGHTS else ops
        yield from (f"edge {edge.id} ends at {end}" for end in (edge.source, edge.target) if end not in known)


def records_exist(graph: Graph) -> Iterator[str]:
    links = links_of(graph)
    cycle = find_cycle((op.id for op in graph.ops), ((link.source, link.target) for link in links))
    if cycle is not None:
        yield f"declared data edges go round: {' -> '.join(cycle)}"


def inputs_bound(graph: Graph) -> Iterator[str]:
    """Every input has one producer whose column fits, and exactly one data edge brings it."""
    known = {op.id: op for op in graph.ops}
    brought = Counter((e.source, e.target, slot) for e in graph.edges if e.kind is EdgeKind.DATA for slot in e.fields)
    for op in graph.ops:
        for input in op.inputs:
            if input.source is None:
                if "insert_log_probs" in graph.passes or input.slot != "old_log_probs":
                    yield f"{op.id} has no producer for {input.slot}"
                continue
            times = brought.pop((input.source, op.id, input.slot), 0)
            if times != 1:
                yield f"{times} edges bring {input.slot} from {input.source} to {op.id}"
            yield from _unfit(known.get(input.source), op, input)
    yield from (f"edge {a} -> {b} brings {slot}, which {b} does not read" for a, b, slot in brought)


def origins_named(graph: Graph) -> Iterator[str]:
    declared = {edge.id for edge in graph.declared}
    for edge in graph.edges:
        if not edge.origin and not edge.derived:
            yield f"edge {edge.id} comes from no declared edge"
        yield from (
            f"edge {edge.id} comes from {id}, which nobody declared" for id in edge.origin if id not in declared
        )


def step_acyclic(graph: Graph) -> Iterator[str]:
    pairs = [(edge.source, edge.target) for edge in graph.edges if _within_step(edge)]
    cycle = find_cycle((op.id for op in graph.ops), pairs)
    if cycle is not None:
        yield f"edges go round within a step: {' -> '.join(cycle)}"


def reads_before_writes(graph: Graph) -> Iterator[str]:
    state = {(edge.source, edge.target) for edge in graph.edges if edge.kind is EdgeKind.STATE}
    updates = {op.role: op.id for op in graph.ops if op.method == "update"}
    for op in graph.ops:
        if op.role in updates and (op.id, updates[op.role]) not in state:
            yield f"nothing orders {op.id} before {updates[op.role]}"


def rates_balanced(graph: Graph) -> Iterator[str]:
    """The balance equations have a solution, and every op's firings are its part of it."""
    rates = step_rates(graph)
    solved = balance_of(graph)
    for conflict in solved.conflicts:
        ways = f"{conflict.known_firings} and {conflict.other_firings} times for each {conflict.start}"
        yield f"{conflict.end} fires {ways}, by {conflict.other[-1].name}"
    for op in graph.ops:
        if op.firings != solved.repetitions[rates.actor_of[op.id]]:
            yield f"{op.id} fires {op.firings} times, and {solved.repetitions[rates.actor_of[op.id]]} balance the step"


def declared_kept(graph: Graph) -> Iterator[str]:
    """Every declared edge is the origin of a lowered one or was removed with a reason; what was removed is gone."""
    kept = {id for edge in graph.edges for id in edge.origin}
    removed = {removal.id: removal for removal in graph.removed}
    weights_later = "insert_weight_sync" not in graph.passes
    for edge in graph.declared:
        if edge.id in kept or edge.id in removed or (weights_later and edge.kind is EdgeKind.WEIGHTS):
            continue
        yield f"declared edge {edge.id} disappeared"
    left = {op.id for op in graph.ops} | {role.name for role in graph.roles}
    yield from (f"{id} was removed and is still there" for id in removed if id in left)
    yield from (f"{id} was removed without a reason" for id, removal in removed.items() if not removal.reason)


def filters_first(graph: Graph) -> Iterator[str]:
    """Along edges of a step each filter comes before every op whose rows it decides on."""
    rows = rows_of(graph)
    pairs = [(edge.source, edge.target) for edge in graph.edges if _within_step(edge)]
    filters = {each.id for op in graph.ops for each in rows.governing(op)}
    below = {id: reachable([id], pairs) for id in filters}
    for op in graph.ops:
        yield from (
            f"nothing orders {each.id} before {op.id}" for each in rows.governing(op) if op.id not in below[each.id]
        )


def forwards_unique(graph: Graph) -> Iterator[str]:
    """No two forwards compute the same columns of the same values."""
    rows = rows_of(graph)
    keys = ((forward_key(graph, rows, op), op.outputs, op.id) for op in graph.ops)
    seen: dict[object, str] = {}
    for key, outputs, id in keys:
        if key is None:
            continue
        other = seen.setdefault((key, outputs), id)
        if other != id:
            yield f"{other} and {id} compute the same"


def shares_sound(graph: Graph) -> Iterator[str]:
    for role in graph.roles:
        trainer = sharing_trainer(graph, role)
        if role.shares != (None if trainer is None else trainer.name):
            yield f"{role.name} shares the weights of {role.shares}"


def weights_have_tokens(graph: Graph) -> Iterator[str]:
    for edge in graph.edges:
        if edge.kind is EdgeKind.WEIGHTS and edge.tokens < versions_per_step(graph, edge):
            yield f"weights edge {edge.id} has {edge.tokens} tokens, fewer than the versions of a step"


def lag_bounded(graph: Graph) -> Iterator[str]:
    """No sample is older than the `max_lag` of the weights edge behind it."""
    most = {e.id: e.tokens - versions_per_step(graph, e) for e in graph.edges if e.kind is EdgeKind.WEIGHTS}
    for lag in path_lags(graph):
        if lag.versions > most[lag.edge]:
            yield f"{lag.update} trains on samples {lag.versions} versions old over {lag.edge}"


def step_ends(graph: Graph) -> Iterator[str]:
    """One step has a sequential schedule within the program's buffers."""
    rates = step_rates(graph)
    found = schedule(rates.actors, rates.channels, balance_of(graph).repetitions)
    if isinstance(found, Deadlock):
        yield f"ops wait for each other: {' -> '.join(wait.actor for wait in found.waits)}"


def granularity_known(graph: Graph) -> Iterator[str]:
    for edge in graph.edges:
        if edge.kind is EdgeKind.DATA and edge.granularity is None:
            yield f"edge {edge.id} has no granularity"


def order_runs(graph: Graph) -> Iterator[str]:
    place = {op.id: index for index, op in enumerate(graph.ops)}
    for edge in graph.edges:
        if _within_step(edge) and place[edge.source] >= place[edge.target]:
            yield f"{edge.target} stands before {edge.source}"


CHECKS: tuple[tuple[str | None, Check], ...] = (
    (None, unique_names),
    (None, owners_exist),
    (None, ends_exist),
    ("refuse_cycles", records_exist),
    ("infer_types", inputs_bound),
    ("infer_types", origins_named),
    ("infer_types", step_acyclic),
    ("infer_types", reads_before_writes),
    ("balance_rates", rates_balanced),
    ("prune_dead", declared_kept),
    ("order_filters", filters_first),
    ("fuse_forwards", forwards_unique),
    ("share_weights", shares_sound),
    ("insert_weight_sync", weights_have_tokens),
    ("infer_granularity", granularity_known),
    ("bound_lag", lag_bounded),
    ("check_liveness", step_ends),
    ("canonicalize", order_runs),
)
"""Each invariant with the pass from which on it holds (None: always)."""


def _told_once(check: Check) -> Callable[[Graph], tuple[str, ...]]:
    return once(lambda graph: tuple(check(graph)))


_TOLD = tuple((since, _told_once(check)) for since, check in CHECKS)


def _within_step(edge: Edge) -> bool:
    return edge.kind is EdgeKind.DATA or (edge.kind is EdgeKind.STATE and edge.tokens == 0)


def _repeated(what: str, names: Iterable[str]) -> Iterator[str]:
    yield from (f"{what} {name} is there {times} times" for name, times in Counter(names).items() if times > 1)


def _unfit(source: Op | None, op: Op, input: Input) -> Iterator[str]:
    column = next((field for field in source.outputs if field.name == input.field), None) if source else None
    if column is None:
        yield f"{op.id} reads {input.source}.{input.field}, which is not there"
        return
    if column.unit.rank < input.unit.rank:
        yield f"{input.source}.{input.field} is too fine for {op.id}"
    if not dtypes_agree(column.dtype, input.dtype):
        yield f"{input.source}.{input.field} is {column.dtype}, {op.id} wants {input.dtype}"
