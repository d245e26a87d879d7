"""Edits that may make a placement fit: one change of the flow each, as a new graph, cluster or request.

Each edit is a key of the flow with a new value. Whether it helps is found by placing again, not believed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from flowrl.graph.graph import Graph, Kind, Op, Role
from flowrl.graph.params import ForwardParams, GenerateParams, ScoreParams, UpdateParams
from flowrl.machine.cluster import Cluster
from flowrl.machine.shorthand import larger_clusters
from flowrl.machine.traits import ENGINES
from flowrl.placement.request import Mode, PlacementRequest

SMALLEST_MICRO_BATCH_TOKENS = 512
SMALLEST_KV_FRACTION = 0.1
SMALLEST_RESPONSE_TOKENS = 256

Situation = tuple[Graph, Cluster, PlacementRequest]


Step = tuple[str, Callable[[Situation], Situation]]
Edit = tuple[Step, ...]
"""Ever stronger forms of one edit, each with the text to write; the first that fits is the one shown."""


def role_edits(graph: Graph, guilty: frozenset[str]) -> Iterator[Edit]:
    """Edits of one role or op each. `guilty` are the roles with a part in some phase that does not fit."""
    for role in _guilty(graph, guilty):
        if role.kind is Kind.GENERATOR and role.backend in ENGINES:
            yield _kv_fraction(role)
        if role.engine.offload is False:
            yield ((f"roles.{role.name}.engine.offload: true", _engine((role.name,), offload=None)),)
    yield from (_recompute((name,)) for name in _recomputing(graph, guilty))
    yield from (_micro_batch((op,)) for op in _batched(graph, guilty))


def joint_edits(graph: Graph, guilty: frozenset[str]) -> Iterator[Edit]:
    """One edit made on all guilty roles at once, for when no single role's is enough."""
    trained, batched = _recomputing(graph, guilty), _batched(graph, guilty)
    yield from ((step,) for step in _given_up_by_all(graph, guilty))
    if len(trained) > 1:
        yield _recompute(trained)
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


def _given_up_by_all(graph: Graph, guilty: frozenset[str]) -> list[Step]:
    """Each of these keys on all roles that give it up."""
    found: dict[str, dict[str, dict[str, object]]] = {}
    for role in _guilty(graph, guilty):
        for text, keys in _given_up(role):
            found.setdefault(text, {})[role.name] = keys
    return [
        (f"{text} of {', '.join(roles)}", _engine(tuple(roles), **next(iter(roles.values()))))
        for text, roles in found.items()
    ]


def combined_edits(graph: Graph, guilty: frozenset[str]) -> Iterator[Edit]:
    """Two edits of all guilty roles at once, for when no one is enough: the keys that they give up; recomputation and
    smaller micro-batches."""
    steps = _given_up_by_all(graph, guilty)
    if len(steps) > 1:
        yield (_both(*steps),)
    trained, batched = _recomputing(graph, guilty), _batched(graph, guilty)
    if trained and batched:
        (recompute,) = _recompute(trained)
        yield tuple(_both(recompute, smaller) for smaller in _micro_batch(batched))


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
        yield (("placement: auto", lambda s: (s[0], s[1], auto)),)


def shorter_edits(graph: Graph, request: PlacementRequest) -> Iterator[Edit]:
    """Shorter responses: they change what is trained, so they are for when nothing else of the roles is enough."""
    for op in graph.ops:
        if isinstance(op.params, GenerateParams) and op.label is None:
            yield _shorter(op, op.params.max_response_tokens, _with_its_length(graph, op, request))


def cluster_edits(cluster: Cluster, request: PlacementRequest) -> Iterator[Edit]:
    """More devices. Explicit pools do not grow by themselves, so they are left out."""
    if request.mode is not Mode.POOLS:
        yield tuple((f"cluster: {text}", _on(grown)) for text, grown in larger_clusters(cluster))


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
    return ((text, _engine(names, recompute="full")),)


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
    return tuple(steps)


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
    return tuple(steps)


def _tokens(op: Op) -> int:
    assert isinstance(op.params, UpdateParams | ForwardParams | ScoreParams)
    return op.params.micro_batch_tokens


def _kv_fraction(role: Role) -> Edit:
    """Smaller leaves room for others; larger gives room to an engine that can't start. The nearest first."""
    now = round(role.engine.kv_fraction * 20)
    lower = [n / 20 for n in range(now - 1, round(SMALLEST_KV_FRACTION * 20) - 1, -1)]
    higher = [n / 20 for n in range(now + 1, 20)]
    shares = sorted((*lower, *higher), key=lambda share: abs(share - role.engine.kv_fraction))
    key = f"roles.{role.name}.engine.kv_fraction"
    return tuple((f"{key}: {share:.2f}", _engine((role.name,), kv_fraction=share)) for share in shares)


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
