"""Random lowered flows of every kind of op, up to 40: forks, joins, the three arrows, filters, routers, labels,
choices, judges with their inner calls, writers that hide one another, restricted edges. Every input has one producer by
the rules of LANGUAGE, found here by a backward search that shares no code with the compiler."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

from hypothesis import strategies as st
from msgspec.structs import replace

from flowrl.graph.graph import Edge, EdgeKind, Graph, Input, Kind, Model, Op, Role, Step
from flowrl.graph.params import (
    AskParams,
    CallParams,
    DataParams,
    EnvParams,
    FilterParams,
    ForwardParams,
    GenerateParams,
    ScoreParams,
    UpdateParams,
)
from flowrl.graph.types import Field, Granularity, Unit

SAMPLE, TOKEN = Unit.SAMPLE, Unit.TOKEN
COLUMNS = {"s0": SAMPLE, "s1": SAMPLE, "advantages": TOKEN}
"""Columns that several ops write."""
MADE = (("tokens", TOKEN, "i32"), ("loss_mask", TOKEN, "bool"), ("response", SAMPLE, "str"))
STEPPED = (("success", SAMPLE, "bool"), ("state", SAMPLE, "i64"))
MODELS = ("one", "two")


@dataclass
class Draft:
    """A flow while it grows. `space` is the call of generate whose rows an op has, "" for prompts."""

    random: Random
    ops: list[Op] = field(default_factory=list)
    roles: dict[str, Role] = field(default_factory=dict)
    edges: list[Edge] = field(default_factory=list)
    space: dict[str, str] = field(default_factory=dict)

    def add(self, op: Op, kind: Kind, space: str, model: str | None = None) -> None:
        self.ops.append(op)
        role = Role(name=op.role, kind=kind, model=model, backend="fsdp" if model else None)
        self.roles[op.role] = role
        self.space[op.id] = space

    def edge(self, source: str, target: str, kind: EdgeKind = EdgeKind.DATA, fields: tuple[str, ...] = ()) -> None:
        arrow = {EdgeKind.DATA: "->", EdgeKind.WEIGHTS: "=>", EdgeKind.INTERACTION: "<->"}[kind]
        id = f"{source} {arrow} {target}"
        if all(edge.id != id for edge in self.edges):
            tokens = 1 if kind is EdgeKind.WEIGHTS else 0
            self.edges.append(Edge(id=id, kind=kind, source=source, target=target, fields=fields, tokens=tokens))


def links(edges: Sequence[Edge], ops: Sequence[Op]) -> list[tuple[str, str, str | None, tuple[str, ...]]]:
    """(from, to, declared edge, columns that pass): how records travel, from the words of LANGUAGE."""
    found: list[tuple[str, str, str | None, tuple[str, ...]]] = []
    for each in edges:
        if each.kind is EdgeKind.DATA:
            found.append((each.source, each.target, each.id, each.fields))
        if each.kind is EdgeKind.INTERACTION:
            found.append((each.target, each.source, each.id, each.fields))
    resets = [op for op in ops if op.method == "reset"]
    steps = [op for op in ops if op.method == "step"]
    found += [(a.id, b.id, None, ()) for a in resets for b in steps if (a.role, a.label) == (b.role, b.label)]
    return found


def above(node: str, pairs: Iterable[tuple[str, str]]) -> set[str]:
    """Everything with a way to `node`."""
    before: dict[str, list[str]] = {}
    for source, target in pairs:
        before.setdefault(target, []).append(source)
    seen: set[str] = set()
    queue = [node]
    while queue:
        for source in before.get(queue.pop(), ()):
            if source not in seen:
                seen.add(source)
                queue.append(source)
    return seen


def producers(reader: str, column: str, ops: Sequence[Op], edges: Sequence[Edge]) -> list[str]:
    """Ops whose `column` the reader may mean: backwards along edges that let it pass, up to the first writer on each
    way; of these, those that lie before another are hidden."""
    ways = links(edges, ops)
    writers = {op.id for op in ops if any(out.name == column for out in op.outputs)}
    into: dict[str, list[tuple[str, tuple[str, ...]]]] = {}
    for source, target, _, fields in ways:
        into.setdefault(target, []).append((source, fields))
    seen: set[str] = set()
    found: set[str] = set()
    queue = [reader]
    while queue:
        for source, fields in into.get(queue.pop(), ()):
            if source in seen or (fields and column not in fields):
                continue
            seen.add(source)
            if source in writers:
                found.add(source)
            else:
                queue.append(source)
    if len(found) < 2:
        return sorted(found)
    pairs = [(a, b) for a, b, _, _ in ways]
    hidden = {id for other in found for id in above(other, pairs)}
    return sorted(found - hidden)


def _readable(draft: Draft, id: str) -> list[str]:
    columns = sorted({out.name for op in draft.ops for out in op.outputs} - {"prompt", "keep"})
    return [name for name in columns if len(producers(id, name, draft.ops, draft.edges)) == 1]


def _place(draft: Draft, id: str, space: str) -> None:
    """Draw edges into a new op from one to three ops of its space or of the prompts; some let few columns pass."""
    random = draft.random
    able = [op for op in draft.ops if draft.space[op.id] in (space, "") and op.method not in ("step", "update")]
    own = [op for op in able if draft.space[op.id] == space]
    chosen = random.sample(able, min(len(able), random.randint(1, 3)))
    if not any(op in own for op in chosen):
        chosen.append(random.choice(own))
    for op in chosen:
        fields: tuple[str, ...] = ()
        if random.random() < 0.1:
            record = [name for name in ("tokens", "loss_mask", "c0", "s0") if producers_through(draft, op, name)]
            fields = tuple(record)
        draft.edge(op.id, id, fields=fields)


def producers_through(draft: Draft, op: Op, column: str) -> bool:
    own = any(out.name == column for out in op.outputs)
    return own or bool(producers(op.id, column, draft.ops, draft.edges))


def _reads(draft: Draft, id: str, most: int = 3) -> tuple[Input, ...]:
    """Columns with one producer, most often what other models and functions made, and now and then one that is chosen
    by name."""
    random = draft.random
    legal = _readable(draft, id)
    names = random.sample(legal, min(len(legal), random.randint(1, most))) if legal else []
    liked = [name for name in ("ref_log_probs", "advantages") if name in legal and name not in names]
    if most > 1 and liked and random.random() < 0.6:
        names.append(random.choice(liked))
    inputs = [Input(slot=name, field=name) for name in names]
    pairs = [(a, b) for a, b, _, _ in links(draft.edges, draft.ops)]
    upstream = [op for op in draft.ops if op.id in above(id, pairs) and op.outputs]
    if upstream and random.random() < 0.2:
        op = random.choice(upstream)
        out = random.choice(op.outputs)
        alone = [o for o in draft.ops if o.role == op.role and any(f.name == out.name for f in o.outputs)]
        if len(alone) == 1 and out.name not in names:
            owner = op.role if op.label is None else f"{op.role}@{op.label}"
            inputs.append(Input(slot=out.name, field=out.name, chosen=owner))
    return tuple(inputs)


def _op(draft: Draft, stem: str, method: str, space: str, direct: float = 0.0, **more: object) -> Op:
    """A new op that edges are drawn to, with the chance `direct` only from its generator; some are labelled calls."""
    label = draft.random.choice((None, None, None, "val"))
    role = f"{stem}{len(draft.ops)}"
    id = f"{role}.{method}" + ("" if label is None else f"@{label}")
    if draft.random.random() < direct:
        draft.edge(space, id)
    else:
        _place(draft, id, space)
    return Op(id=id, role=role, method=method, label=label, granularity=Granularity.SAMPLE, **more)  # type: ignore[arg-type]


def _with(op: Op, inputs: tuple[Input, ...], outputs: tuple[Field, ...] = ()) -> Op:
    return Op(
        id=op.id,
        role=op.role,
        method=op.method,
        label=op.label,
        granularity=op.granularity,
        inputs=inputs,
        outputs=outputs or op.outputs,
        params=op.params,
    )


def _writes(draft: Draft, id: str, own: str) -> tuple[Field, ...]:
    able = [
        name for name, unit in COLUMNS.items() if unit is not TOKEN or producers(id, "tokens", draft.ops, draft.edges)
    ]
    shared = draft.random.choice((None, *able, *able))
    names = {own: SAMPLE} | ({} if shared is None else {shared: COLUMNS[shared]})
    return tuple(Field(name=name, unit=unit, dtype="f32") for name, unit in names.items())


def _function(draft: Draft, space: str) -> None:
    op = _op(draft, "f", "call", space, params=CallParams(function="f.py:f"))
    outputs = _writes(draft, op.id, f"w{len(draft.ops)}")
    draft.add(_with(op, _reads(draft, op.id), outputs), Kind.FUNCTION, space)


def _reward(draft: Draft, space: str) -> None:
    params = ScoreParams(flavour="function", function="f.py:f")
    rewards = (Field(name="rewards", unit=SAMPLE, dtype="f32"),)
    op = _op(draft, "r", "score", space, outputs=rewards, params=params)
    draft.add(_with(op, _reads(draft, op.id)), Kind.REWARD, space)


def _router(draft: Draft, space: str) -> None:
    """Reads the rewards of one or two others by their roles, and the column that chooses."""
    able = [op for op in draft.ops if op.method == "score" and draft.space[op.id] == space and op.label is None]
    routed = draft.random.sample(able, min(2, len(able)))
    routes = {str(place): op.role for place, op in enumerate(routed)}
    params = ScoreParams(flavour="router", extra={"router": {"by": "c0", "routes": routes}})
    rewards = (Field(name="rewards", unit=SAMPLE, dtype="f32"),)
    op = _op(draft, "q", "score", space, outputs=rewards, params=params)
    for other in routed:
        draft.edge(other.id, op.id)
    inputs = [Input(slot=each.role, field="rewards", chosen=each.role) for each in routed]
    if len(producers(op.id, "c0", draft.ops, draft.edges)) == 1:
        inputs.append(Input(slot="c0", field="c0"))
    draft.add(_with(op, tuple(inputs)), Kind.REWARD, space)


def inner_call(judge: str) -> str:
    """The op that asks a judge's model, from the judge's op."""
    return judge.replace(".score", ".ask").replace(".compare", ".ask_pairs")


def _judge(draft: Draft, space: str) -> None:
    """An op that reads the answers of its inner call, which is fed what the judge is fed by derived edges."""
    method, column, unit, dtype = draft.random.choice(
        (("score", "judge_answer", SAMPLE, "str"), ("compare", "judge_answers", Unit.PROMPT, "str[]"))
    )
    rows = Granularity.GROUP if method == "compare" else Granularity.SAMPLE
    rewards = (Field(name="rewards", unit=SAMPLE, dtype="f32"),)
    judge = _op(draft, "j", method, space, outputs=rewards, params=ScoreParams(flavour="judge", function="f.py:f"))
    asks = inner_call(judge.id)
    for fed in [edge for edge in draft.edges if edge.target == judge.id]:
        draft.edges.append(replace(fed, id=f"{fed.source} -> {asks}", target=asks, origin=(fed.id,), derived=True))
    draft.edges.append(Edge(id=f"{asks} -> {judge.id}", kind=EdgeKind.DATA, source=asks, target=judge.id, derived=True))
    if any(len(producers(asks, name, draft.ops, draft.edges)) != 1 for name in ("prompt", "response")):
        draft.edges = [edge for edge in draft.edges if not {asks, judge.id} & {edge.source, edge.target}]
        return
    inner = Op(
        id=asks,
        role=judge.role,
        method=asks.partition(".")[2].partition("@")[0],
        label=judge.label,
        granularity=rows,
        inputs=tuple(Input(slot=name, field=name, unit=SAMPLE) for name in ("prompt", "response")),
        outputs=(Field(name=column, unit=unit, dtype=dtype),),
        params=AskParams(template="t.j2", endpoint=draft.random.choice((None, "https://judge"))),
        derived=True,
    )
    model = "one" if inner.params == AskParams(template="t.j2") else None
    draft.add(inner, Kind.REWARD, space, model=model)
    reads = (Input(slot=column, field=column, unit=SAMPLE, dtype=dtype),)
    draft.add(replace(judge, granularity=rows, inputs=reads), Kind.REWARD, space, model=model)


def _filter(draft: Draft, space: str) -> None:
    action = draft.random.choice(("drop", "drop", "mask"))
    params = FilterParams(rule="threshold", min=0.0, unit=draft.random.choice(("sample", "group")), action=action)
    keep = (Field(name="keep", unit=SAMPLE, dtype="bool"),)
    op = _op(draft, "k", "select", space, outputs=keep, params=params)
    draft.add(_with(op, _reads(draft, op.id, most=1)), Kind.FILTER, space)


def _scorer(draft: Draft, space: str) -> None:
    out = (Field(name="ref_log_probs", unit=TOKEN, dtype="f32"),)
    op = _op(draft, "s", "log_probs", space, direct=0.5, outputs=out, params=ForwardParams())
    names = ("tokens", "loss_mask")
    if any(len(producers(op.id, name, draft.ops, draft.edges)) != 1 for name in names):
        draft.edge(space, op.id)
    if any(len(producers(op.id, name, draft.ops, draft.edges)) != 1 for name in names):
        draft.edges = [edge for edge in draft.edges if op.id not in (edge.source, edge.target)]
        return
    inputs = tuple(Input(slot=name, field=name) for name in names)
    draft.add(_with(op, inputs), Kind.SCORER, space, model=draft.random.choice(MODELS))


def _update(draft: Draft, space: str) -> None:
    op = _op(draft, "t", "update", space, params=UpdateParams(loss="reinforce", old_log_probs="none"))
    names = ("tokens", "loss_mask", "advantages")
    legal = [name for name in names if len(producers(op.id, name, draft.ops, draft.edges)) == 1]
    if len(legal) < 3:
        draft.edges = [edge for edge in draft.edges if op.id not in (edge.source, edge.target)]
        return
    done = Op(
        id=op.id,
        role=op.role,
        method="update",
        label=op.label,
        granularity=Granularity.MINIBATCH,
        inputs=tuple(Input(slot=name, field=name) for name in names),
        params=op.params,
    )
    draft.add(done, Kind.TRAINER, space, model="one")


def _generator(draft: Draft) -> str:
    """A call of generate on prompts, half of them in an interaction. Its id is the new space."""
    number = len(draft.ops)
    label = draft.random.choice((None, None, "val"))
    at = "" if label is None else f"@{label}"
    id = f"g{number}.generate{at}"
    outputs = tuple(Field(name=name, unit=unit, dtype=dtype) for name, unit, dtype in MADE)
    if draft.random.random() < 0.4:
        world = f"e{number}"
        prompt = (Field(name="prompt", unit=SAMPLE, dtype="messages"),)
        state = tuple(Field(name=name, unit=unit, dtype=dtype) for name, unit, dtype in STEPPED)
        params = EnvParams(env="f.py:E", max_turns=3)
        draft.edge("data.train", f"{world}.reset{at}")
        reset = Op(
            id=f"{world}.reset{at}",
            role=world,
            method="reset",
            label=label,
            granularity=Granularity.SAMPLE,
            inputs=(Input(slot="prompt_id", field="prompt_id"),),
            outputs=prompt,
            params=params,
        )
        step = Op(
            id=f"{world}.step{at}",
            role=world,
            method="step",
            label=label,
            granularity=Granularity.SAMPLE,
            outputs=state,
            params=params,
        )
        draft.add(reset, Kind.ENV, id)
        draft.add(step, Kind.ENV, id)
        draft.edge(id, step.id, EdgeKind.INTERACTION)
    else:
        draft.edge("data.train", id)
    op = Op(
        id=id,
        role=f"g{number}",
        method="generate",
        label=label,
        granularity=Granularity.SAMPLE,
        inputs=(Input(slot="prompt", field="prompt"),),
        outputs=outputs,
        params=GenerateParams(max_response_tokens=8, samples_per_prompt=4),
    )
    draft.add(op, Kind.GENERATOR, id, model="one")
    return id


def _weights(draft: Draft) -> Iterator[tuple[str, str]]:
    trainers = [op.role for op in draft.ops if op.method == "update"]
    for role in draft.roles.values():
        if trainers and role.kind in (Kind.GENERATOR, Kind.SCORER) and draft.random.random() < 0.4:
            yield draft.random.choice(trainers), role.name


MAKERS = (_function, _function, _function, _reward, _judge, _router, _filter, _scorer, _scorer, _update, _update)


def grown(random: Random, most: int) -> Graph:
    draft = Draft(random)
    columns = (("prompt_id", "i64"), ("prompt", "messages"), ("c0", "json"), ("c1", "json"))
    data = Op(
        id="data.train",
        role="data.train",
        method="train",
        granularity=Granularity.PROMPT,
        outputs=tuple(Field(name=name, unit=Unit.PROMPT, dtype=dtype) for name, dtype in columns),
        params=DataParams(source="rows.jsonl", keep=("c0", "c1")),
    )
    draft.add(data, Kind.DATA, "")
    spaces = [_generator(draft) for _ in range(random.choice((1, 1, 2)))]
    count = random.randint(2, most - 8)
    while len(draft.ops) < count:
        space = random.choice(spaces)
        random.choice(MAKERS)(draft, space)
    _reward(draft, spaces[0])
    for trainer, receiver in _weights(draft):
        draft.edge(trainer, receiver, EdgeKind.WEIGHTS)
    return Graph(
        name="any",
        models=tuple(Model(name=name, source=f"hub/{name}") for name in MODELS),
        roles=tuple(draft.roles.values()),
        ops=tuple(draft.ops),
        declared=tuple(draft.edges),
        step=Step(prompts=8, samples_per_prompt=4),
    )


def any_flows(most: int = 40) -> st.SearchStrategy[Graph]:
    """Lowered flows of 4 to `most` ops."""
    return st.integers(0, 2**32 - 1).map(lambda seed: grown(Random(seed), most))
