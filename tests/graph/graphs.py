"""Graphs made by hand, and random ones: what the lowering would give for flows of user functions and rewards."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from flowrl.graph.graph import Edge, EdgeKind, Graph, Input, Kind, Op, Role, Step
from flowrl.graph.params import CallParams, DataParams, ScoreParams
from flowrl.graph.types import Field, Granularity, Unit

SHARED = ("s0", "s1")
"""Columns that several ops of a random graph write, so that they hide one another or are ambiguous."""


def call(id: str, reads: Sequence[str] = (), writes: Sequence[str] = (), kind: Kind = Kind.FUNCTION) -> Op:
    """A user function or reward that reads and writes sample columns."""
    role, _, method = id.partition(".")
    score = ScoreParams(flavour="function", function="f.py:f")
    return Op(
        id=id,
        role=role,
        method=method,
        granularity=Granularity.SAMPLE,
        inputs=tuple(Input(slot=name, field=name) for name in reads),
        outputs=tuple(Field(name=name, unit=Unit.SAMPLE, dtype="f32") for name in writes),
        params=CallParams(function="f.py:f") if kind is Kind.FUNCTION else score,
    )


def source(*columns: str) -> Op:
    return Op(
        id="data.train",
        role="data.train",
        method="train",
        granularity=Granularity.PROMPT,
        outputs=tuple(Field(name=name, unit=Unit.PROMPT, dtype="json") for name in columns),
        params=DataParams(source="rows.jsonl"),
    )


def edge(start: str, end: str) -> Edge:
    return Edge(id=f"{start} -> {end}", kind=EdgeKind.DATA, source=start, target=end)


def graph(ops: Sequence[Op], pairs: Sequence[tuple[str, str]]) -> Graph:
    """Rewards are the ops named `*.score`, the data set is `data.train`, the rest are functions."""
    kinds = {op.role: _kind(op) for op in ops}
    return Graph(
        name="random",
        models=(),
        roles=tuple(Role(name=name, kind=kind) for name, kind in kinds.items()),
        ops=tuple(ops),
        declared=tuple(edge(*pair) for pair in pairs),
        step=Step(prompts=8),
    )


def _kind(op: Op) -> Kind:
    if op.role == "data.train":
        return Kind.DATA
    return Kind.REWARD if op.method == "score" else Kind.FUNCTION


def paths(pairs: Sequence[tuple[str, str]], nodes: Sequence[str]) -> set[tuple[str, str]]:
    """Every (a, b) with a way of one edge or more from a to b, by Warshall's closure."""
    found = set(pairs)
    for middle in nodes:
        found |= {(a, b) for a in nodes for b in nodes if (a, middle) in found and (middle, b) in found}
    return found


def visible(reader: str, field: str, ops: Sequence[Op], ways: set[tuple[str, str]]) -> list[str]:
    """Producers of `field` upstream of `reader` that no other producer upstream of it lies after."""
    makers = [op.id for op in ops if any(f.name == field for f in op.outputs) and (op.id, reader) in ways]
    return [maker for maker in makers if not any((maker, other) in ways for other in makers)]


@st.composite
def flows(draw: st.DrawFn, most: int = 40) -> Graph:
    """Forks and joins of up to `most` ops; every op reads columns that have exactly one producer in its scope."""
    count = draw(st.integers(2, most))
    ops: list[Op] = [source("c0", "c1")]
    pairs: list[tuple[str, str]] = []
    for index in range(1, count):
        upstream = draw(st.lists(st.integers(0, index - 1), min_size=1, max_size=3, unique=True))
        last = index == count - 1
        kind = Kind.REWARD if last or draw(st.integers(0, 3)) == 0 else Kind.FUNCTION
        id = f"r{index}.{'score' if kind is Kind.REWARD else 'call'}"
        pairs += [(ops[i].id, id) for i in upstream]
        nodes = [op.id for op in ops] + [id]
        ways = paths(pairs, nodes)
        columns = sorted({f.name for op in ops for f in op.outputs})
        legal = [name for name in columns if len(visible(id, name, ops, ways)) == 1]
        reads = draw(st.lists(st.sampled_from(legal), min_size=1, max_size=3, unique=True)) if legal else []
        shared = draw(st.sampled_from((None, *SHARED)))
        writes = [f"w{index}", *([shared] if shared is not None else [])]
        ops.append(call(id, reads, writes, kind))
    return graph(ops, pairs)
