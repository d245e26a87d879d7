"""Edits that may make a placement fit: one change of the flow each, as a new graph, cluster or request.

Each edit is a key of the flow with a new value. Whether it helps is found by placing again, not believed (tries.py);
what an edit can't touch is known before.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import lcm
from typing import overload

from msgspec.structs import replace

from flowrl.graph.graph import Graph, Kind, Op, Role
from flowrl.graph.params import DataParams, FilterParams, ForwardParams, GenerateParams, ScoreParams, UpdateParams
from flowrl.graph.rows import rows_of
from flowrl.graph.sizes import WINDOW, dividing
from flowrl.machine.cluster import Cluster
from flowrl.machine.shorthand import larger_by, roomier
from flowrl.machine.traits import ENGINES
from flowrl.placement.cost.placed import share_of
from flowrl.placement.request import Mode, PlacementRequest
from flowrl.plan.plan import Memory

SMALLEST_MICRO_BATCH_TOKENS = 512
SMALLEST_KV_FRACTION = 0.1
SMALLEST_RESPONSE_TOKENS = 256

Situation = tuple[Graph, Cluster, PlacementRequest]


Step = tuple[str, Callable[[Situation], Situation]]
"""The text to write, and what it makes of a flow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    steps: Sequence[Step]
    """Ever stronger forms of one edit; the first that fits is the one shown."""
    keys: int = 1
    """How many keys of the flow it changes."""
    roles: frozenset[str] | None = None
    """Whose memory it may make less; None: anybody's."""
    phases: frozenset[str] | None = None
    """In which phases it may; None: in any."""
    falling: bool = False
    """Whether each step needs no more memory than the one before."""
    anew: bool = False
    """Whether pools have to be chosen anew: it changes what they are chosen from."""

    def may_help(self, over: Iterable[Memory]) -> bool:
        """Whether each phase that does not fit would, had the edit's roles nothing in it."""
        return all(entry.peak_bytes - self._eased(entry) <= entry.limit_bytes for entry in over)

    def _eased(self, entry: Memory) -> float:
        if self.phases is not None and entry.phase not in self.phases:
            return 0.0
        if self.roles is None or entry.phase.startswith("start "):
            return float(entry.peak_bytes)  # of a start the limit moves, not the need
        return sum(line.value for line in entry.lines if line.role in self.roles)


def role_edits(graph: Graph, guilty: frozenset[str]) -> Iterator[Edit]:
    """Edits of one role or op each. `guilty` are the roles with a part in some phase that does not fit."""
    for role in _guilty(graph, guilty):
        if role.kind is Kind.GENERATOR and role.backend in ENGINES:
            yield from _kv_fraction(role)
        if role.engine.offload is False:
            step = (f"roles.{role.name}.engine.offload: true", _engine((role.name,), offload=None))
            yield Edit(steps=(step,), roles=frozenset({role.name}))
    yield from (_recompute((name,)) for name in _recomputing(graph, guilty))
    yield from (_micro_batch((op,)) for op in _batched(graph, guilty))


def joint_edits(graph: Graph, guilty: frozenset[str], phases: frozenset[str]) -> Iterator[Edit]:
    """One edit made on all guilty roles at once, for when no single role's is enough; of micro-batches those of the
    phases that do not fit, and those of all ops of the roles."""
    trained, batched = _recomputing(graph, guilty), _batched(graph, guilty)
    yield from _given_up_by_all(graph, guilty)
    if len(trained) > 1:
        yield _recompute(trained)
    own = tuple(op for op in batched if op.id in phases)
    if 1 < len(own) < len(batched):
        yield _micro_batch(own)
    if len(batched) > 1:
        yield _micro_batch(batched)


def _given_up(role: Role) -> Iterator[tuple[str, dict[str, object]]]:
    """Keys by which a role's flow gives up what saves memory, with the value that does not."""
    engine = role.engine
    if engine.offload is False:
        yield "engine.offload: true", {"offload": None}
    if engine.load != "parts":
        yield "engine.load: parts", {"load": "parts"}
    if engine.zero_stage in (1, 2) and role.backend in ("fsdp", "deepspeed"):
        yield "engine.zero_stage: 3", {"zero_stage": 3}


def _given_up_by_all(graph: Graph, guilty: frozenset[str]) -> list[Edit]:
    """Each of these keys on all roles that give it up."""
    found: dict[str, dict[str, dict[str, object]]] = {}
    for role in _guilty(graph, guilty):
        for text, keys in _given_up(role):
            found.setdefault(text, {})[role.name] = keys
    return [
        Edit(
            steps=((f"{text} of {', '.join(roles)}", _engine(tuple(roles), **next(iter(roles.values())))),),
            keys=len(roles),
            roles=frozenset(roles),
        )
        for text, roles in found.items()
    ]


def combined_edits(graph: Graph, guilty: frozenset[str]) -> Iterator[Edit]:
    """Two edits of all guilty roles at once, for when no one is enough: the keys that they give up; recomputation and
    smaller micro-batches."""
    given_up = _given_up_by_all(graph, guilty)
    if len(given_up) > 1:
        both = _both(*(edit.steps[0] for edit in given_up))
        yield Edit(steps=(both,), keys=sum(edit.keys for edit in given_up), roles=guilty)
    trained, batched = _recomputing(graph, guilty), _batched(graph, guilty)
    if trained and batched:
        recompute, smaller = _recompute(trained), _micro_batch(batched)
        yield dataclasses.replace(
            smaller,
            steps=tuple(_both(recompute.steps[0], step) for step in smaller.steps),
            keys=recompute.keys + smaller.keys,
        )


def _both(*steps: Step) -> Step:
    return " and ".join(text for text, _ in steps), _in_turn([change for _, change in steps])


def _in_turn(changes: Sequence[Callable[[Situation], Situation]]) -> Callable[[Situation], Situation]:
    def apply(situation: Situation) -> Situation:
        for change in changes:
            situation = change(situation)
        return situation

    return apply


def placement_edits(request: PlacementRequest) -> Iterator[Edit]:
    """Leave the choice of pools to placement."""
    if request.mode is not Mode.AUTO:
        auto = replace(request, mode=Mode.AUTO, pools=(), pin={})
        yield Edit(steps=(("placement: auto", lambda s: (s[0], s[1], auto)),), anew=True)


def shorter_edits(graph: Graph, request: PlacementRequest) -> Iterator[Edit]:
    """Shorter responses: they change what is trained, so they are for when nothing else of the roles is enough."""
    for op in graph.ops:
        if isinstance(op.params, GenerateParams) and op.label is None:
            yield _shorter(op, op.params.max_response_tokens, _with_its_length(graph, op, request))


def fewer_prompts(graph: Graph, least: int) -> Iterator[Edit]:
    """A smaller step, of `least` prompts at least; the largest first. It changes what is trained, as shorter responses
    do. Only prompts that every update can share out evenly, and of which filters leave whole numbers."""
    rows = rows_of(graph)
    updates = [(op, op.params.updates) for op in graph.ops if isinstance(op.params, UpdateParams)]
    legal = [dividing(rows, op, count) for op, count in updates if rows.prompts(op).fixed is not None]
    filters = [op.params for op in graph.ops if isinstance(op.params, FilterParams)]
    if any(each.keep_top is not None and each.unit == "sample" and each.within == "step" for each in filters):
        return
    kept = any(each.keep_top is not None for each in filters)
    stride = max(1, graph.step.prompts // WINDOW) if kept else lcm(*(count for _, count in updates))
    counts = range((graph.step.prompts - 1) // stride * stride, least - 1, -stride)
    steps = _Sizes(counts if not kept else [count for count in counts if all(is_legal(count) for is_legal in legal)])
    yield Edit(steps=steps, falling=True)


class _Sizes(Sequence[Step]):
    """Steps of so many prompts each, written when they are asked for: there may be a million."""

    def __init__(self, counts: Sequence[int]) -> None:
        self.counts = counts

    def __len__(self) -> int:
        return len(self.counts)

    @overload
    def __getitem__(self, at: int) -> Step: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Step]: ...
    def __getitem__(self, at: int | slice) -> Step | Sequence[Step]:
        found = self.counts[at]
        return (f"step.prompts: {found}", _of_prompts(found)) if isinstance(found, int) else _Sizes(found)


def _of_prompts(count: int) -> Callable[[Situation], Situation]:
    def apply(situation: Situation) -> Situation:
        graph, cluster, request = situation
        drawn = tuple(_drawing(op, count) for op in graph.ops)
        return replace(graph, ops=drawn, step=replace(graph.step, prompts=count)), cluster, request

    return apply


def _drawing(op: Op, count: int) -> Op:
    """A data set that feeds the step gives as many rows as it has prompts (the pass balance_rates)."""
    draws = isinstance(op.params, DataParams) and op.params.prompts is not None
    return _with_params(op, {"prompts": count}) if draws else op


def cluster_edits(cluster: Cluster, request: PlacementRequest) -> Iterator[Edit]:
    """More devices: a node more of a group, and so on. Explicit pools do not grow by themselves and are left out."""
    for group in cluster.groups if request.mode is not Mode.POOLS else ():
        grown = larger_by(cluster, group)
        if grown:
            yield Edit(steps=tuple((f"cluster: {text}", _on(each)) for text, each in grown), anew=True)


def device_edits(cluster: Cluster) -> Iterator[Edit]:
    """As many devices with more memory."""
    larger = roomier(cluster)
    if larger:
        yield Edit(steps=tuple((f"cluster: {text}", _on(each)) for text, each in larger), anew=True)


def _guilty(graph: Graph, names: frozenset[str]) -> list[Role]:
    return [role for role in graph.roles if role.name in names]


def _recomputing(graph: Graph, guilty: frozenset[str]) -> tuple[str, ...]:
    """Trainers whose flow forbids full recomputation. Where it says nothing, placement has tried it already."""
    roles = _guilty(graph, guilty)
    return tuple(role.name for role in roles if role.trainable and role.engine.recompute not in (None, "full"))


def _batched(graph: Graph, guilty: frozenset[str]) -> tuple[Op, ...]:
    batched = (op for op in graph.ops if isinstance(op.params, UpdateParams | ForwardParams | ScoreParams))
    return tuple(op for op in batched if op.role in guilty)


def _recompute(names: tuple[str, ...]) -> Edit:
    text = f"roles.{names[0]}.engine.recompute: full"
    if len(names) > 1:
        text = f"engine.recompute: full of all {len(names)} trainers"
    step = (text, _engine(names, recompute="full"))
    return Edit(steps=(step,), keys=len(names), roles=frozenset(names))


def _micro_batch(ops: tuple[Op, ...]) -> Edit:
    """Half, a quarter, … of the smallest micro-batch among `ops`."""
    roles = list(dict.fromkeys(op.role for op in ops))
    label, whose = "micro_batch_tokens", f" in all {len(ops)} ops of {', '.join(roles)}"
    if len(ops) == 1:
        label, whose = f"roles.{_key(ops[0])}.{label}", ""
    elif len(roles) == 1:
        methods = ", ".join(op.id.removeprefix(f"{op.role}.") for op in ops)
        label, whose = f"roles.{roles[0]}.{{{methods}}}.{label}", ""
    steps: list[Step] = []
    tokens = min(_tokens(op) for op in ops) // 2
    while tokens >= SMALLEST_MICRO_BATCH_TOKENS:
        steps.append((f"{label}: {tokens}{whose}", _sized(ops, tokens)))
        tokens //= 2
    return Edit(steps=tuple(steps), keys=len(ops), roles=frozenset(roles), falling=True)


def _sized(ops: tuple[Op, ...], tokens: int) -> Callable[[Situation], Situation]:
    """As if the flow had written it: then placement chooses no other."""
    change = _params(frozenset(op.id for op in ops), micro_batch_tokens=tokens)
    written = {f"roles.{_key(op)}.micro_batch_tokens": "an edit" for op in ops}

    def apply(situation: Situation) -> Situation:
        graph, cluster, request = change(situation)
        return graph, cluster, replace(request, origins={**request.origins, **written})

    return apply


def _key(op: Op) -> str:
    """Where its parameters stand below `roles`."""
    return op.id if op.method in ("update", "log_probs", "values") else op.role


def _with_its_length(graph: Graph, op: Op, request: PlacementRequest) -> frozenset[str]:
    """The op and the labelled calls of its role that say no length of their own."""
    calls = (each for each in graph.ops if each.role == op.role and each.method == op.method)
    own = "max_response_tokens"
    return frozenset(
        call.id
        for call in calls
        if call.label is None or request.origin("roles", op.role, f"{op.method}@{call.label}", own) == "default"
    )


def _shorter(op: Op, tokens: int, ids: frozenset[str]) -> Edit:
    steps: list[Step] = []
    while (tokens := tokens // 2) >= SMALLEST_RESPONSE_TOKENS:
        steps.append((f"roles.{op.id}.max_response_tokens: {tokens}", _params(ids, max_response_tokens=tokens)))
    return Edit(steps=tuple(steps), falling=True)


def _tokens(op: Op) -> int:
    assert isinstance(op.params, UpdateParams | ForwardParams | ScoreParams)
    return op.params.micro_batch_tokens


def _kv_fraction(role: Role) -> Iterator[Edit]:
    """Smaller leaves room for others, if placement has not tried it; larger gives room to an engine that can't start.
    The nearest first."""
    now = round(share_of(role) * 20)
    lower = [n / 20 for n in range(now - 1, round(SMALLEST_KV_FRACTION * 20) - 1, -1)]
    if role.engine.kv_fraction is None:
        lower = []
    higher = [n / 20 for n in range(now + 1, 20)]
    key, own = f"roles.{role.name}.engine.kv_fraction", frozenset({role.name})
    for shares, phases in ((lower, None), (higher, frozenset({f"start {role.name}"}))):
        steps = tuple((f"{key}: {share:.2f}", _engine((role.name,), kv_fraction=share)) for share in shares)
        if steps:
            yield Edit(steps=steps, roles=own, phases=phases)


def _engine(names: tuple[str, ...], **changes: object) -> Callable[[Situation], Situation]:
    def apply(situation: Situation) -> Situation:
        graph, cluster, request = situation
        roles = tuple(_changed(role, changes) if role.name in names else role for role in graph.roles)
        return replace(graph, roles=roles), cluster, request

    return apply


def _changed(role: Role, changes: dict[str, object]) -> Role:
    return replace(role, engine=replace(role.engine, **changes))


def _params(ids: frozenset[str], **changes: object) -> Callable[[Situation], Situation]:
    def apply(situation: Situation) -> Situation:
        graph, cluster, request = situation
        ops = tuple(_with_params(op, changes) if op.id in ids else op for op in graph.ops)
        return replace(graph, ops=ops), cluster, request

    return apply


def _with_params(op: Op, changes: dict[str, object]) -> Op:
    assert op.params is not None
    return replace(op, params=replace(op.params, **changes))


def _on(cluster: Cluster) -> Callable[[Situation], Situation]:
    return lambda situation: (situation[0], cluster, situation[2])
