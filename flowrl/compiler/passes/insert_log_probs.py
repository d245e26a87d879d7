"""insert_log_probs: old log-probs only where they must be recomputed."""

from __future__ import annotations

from msgspec.structs import replace

from flowrl.compiler.binding import bind, missing
from flowrl.compiler.edges import data_edges, state_edges
from flowrl.compiler.frames import misaligned
from flowrl.diag.diagnostic import Diagnostic, FlowError, diagnose
from flowrl.graph.algorithms import reachable
from flowrl.graph.denoised import DENOISED
from flowrl.graph.graph import EdgeKind, Graph, Input, Op
from flowrl.graph.lag import on_policy
from flowrl.graph.params import ForwardParams, UpdateParams
from flowrl.graph.records import Records, records
from flowrl.graph.signatures import LOSSES, OpSignature, op_signature
from flowrl.graph.types import Granularity

SLOT = "old_log_probs"
ROLLOUT = "rollout_log_probs"


def insert_log_probs(graph: Graph) -> Graph:
    """Bind every `old_log_probs`: to the rollout's own where the policy has not moved, else to a recomputation.

    before: actor_train.update reads old_log_probs from ?      (lag 0)
    after:  updates=1: old_log_probs = rollout_log_probs of actor_infer.generate
            updates=4: generate -> actor_train.log_probs -> actor_train.update, added if the user did not draw it

    Requires: bound inputs, firings. Ensures: every input is bound; a flow that draws `log_probs` and one that leaves it
    out differ only in what is marked derived.
    """
    found = records(graph.ops, graph.roles, graph.declared)
    readers = [op for op in graph.ops if any(_unbound(i) for i in op.inputs)]
    if not readers:
        return graph
    problems: list[Diagnostic] = []
    added: dict[str, Op] = {}
    changed: dict[str, Op] = {}
    for reader in readers:
        bound = _bound(graph, found, reader, added)
        if isinstance(bound, Diagnostic):
            problems.append(bound)
            continue
        inputs = (bound if _unbound(i) else i for i in reader.inputs)
        changed[reader.id] = replace(reader, inputs=tuple(i for i in inputs if i is not None))
    ops = (*(changed.get(op.id, op) for op in graph.ops), *added.values())
    problems += misaligned(ops)
    if problems:
        raise FlowError(problems)
    updates = [op for op in ops if op.method == "update"]
    kept = (e for e in graph.edges if e.kind is EdgeKind.INTERACTION)
    edges = (*(e for op in ops for e in data_edges(op, found)), *kept, *state_edges(updates, ops))
    return replace(graph, ops=ops, edges=edges)


def _unbound(input: Input) -> bool:
    return input.slot == SLOT and input.source is None


def _bound(graph: Graph, found: Records, reader: Op, added: dict[str, Op]) -> Input | Diagnostic | None:
    """None for an optional input that nothing makes. Where no update follows, the column is bound like any other."""
    slot = next(i for i in reader.inputs if _unbound(i))
    updates = _updates_of(graph, reader)
    if not updates:
        return bind(graph, found, reader, slot)
    results = [_for_update(graph, found, reader, slot, update, added) for update in updates]
    problem = next((r for r in results if isinstance(r, Diagnostic)), None)
    if problem is not None:
        return problem
    inputs = {(r.source, r.field): r for r in results if isinstance(r, Input)}
    if len(inputs) == 1:
        return next(iter(inputs.values()))
    roles = sorted({update.role for update in updates})
    names = " and ".join(f"`{role}.log_probs`" for role in roles)
    return diagnose(
        "FR0207", reader.span, op=reader.id, field=SLOT, slot=SLOT, producers=names, choice=f"{roles[0]}.{SLOT}"
    )


def _updates_of(graph: Graph, reader: Op) -> list[Op]:
    """The updates whose old policy `reader` means: itself, or those that train on what follows from it."""
    if isinstance(reader.params, UpdateParams):
        return [reader]
    reads = [(i.source, op.id) for op in graph.ops for i in op.inputs if i.source is not None]
    below = reachable([reader.id], reads)
    trained = (op for op in graph.ops if op.id in below)
    return [op for op in trained if isinstance(op.params, UpdateParams) and LOSSES[op.params.loss].ratio]


def _for_update(
    graph: Graph, found: Records, reader: Op, slot: Input, update: Op, added: dict[str, Op]
) -> Input | Diagnostic:
    if _rollout_will_do(graph, update):
        bound = bind(graph, found, reader, replace(slot, field=ROLLOUT))
        return bound if bound is not None else missing(graph, found, reader, ROLLOUT)
    op = _log_probs(graph, update) or added.setdefault(update.role, _new(graph, update))
    return replace(slot, source=op.id)


def _rollout_will_do(graph: Graph, update: Op) -> bool:
    assert isinstance(update.params, UpdateParams)
    setting = update.params.old_log_probs
    return setting == "rollout" or (setting in ("auto", "none") and on_policy(graph, update))


def _tokens(op: Op) -> str | None:
    return next((i.source for i in op.inputs if i.slot in ("tokens", "latents")), None)


def _log_probs(graph: Graph, update: Op) -> Op | None:
    """The user's own call of log_probs on the rows that `update` trains on."""
    calls = (op for op in graph.ops if op.role == update.role and op.method == "log_probs")
    return min((op for op in calls if _tokens(op) == _tokens(update)), key=lambda op: op.id, default=None)


def _new(graph: Graph, update: Op) -> Op:
    """`ROLE.log_probs` on the same rows as `update`, as if the user had drawn it."""
    role = graph.role(update.role)
    signature = op_signature(role.kind, "log_probs", None)
    assert signature is not None
    assert isinstance(update.params, UpdateParams)
    names = ("tokens", "loss_mask", *DENOISED, "images")
    source = _tokens(update)
    rollout = next((op for op in graph.ops if op.id == source), update)
    taken = {op.id for op in graph.ops}
    label = None if f"{role.name}.log_probs" not in taken else "update"
    return Op(
        id=f"{role.name}.log_probs" if label is None else f"{role.name}.log_probs@{label}",
        role=role.name,
        method="log_probs",
        label=label,
        granularity=Granularity.SAMPLE,
        inputs=(*(i for i in update.inputs if i.slot in names), *_rollouts_own(signature, rollout)),
        outputs=signature.writes,
        params=replace(role.forward or ForwardParams(), temperature=update.params.temperature),
        every_steps=rollout.every_steps,
        start_step=rollout.start_step,
        derived=True,
        span=update.span,
    )


def _rollouts_own(signature: OpSignature, rollout: Op) -> tuple[Input, ...]:
    """The rollout's log-probs, where it has any: log_probs measures how far they are from the trainer's."""
    if all(field.name != ROLLOUT for field in rollout.outputs):
        return ()
    return tuple(replace(i, source=rollout.id) for i in signature.reads if i.slot == ROLLOUT)
