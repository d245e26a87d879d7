"""Which rows a firing takes and which rank takes which: pure choices over ids and token counts.

Takes the graph's bound inputs and records' metadata; gives BoundInputs and ids by rank. Never sees a column.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

import numpy as np

from flowrl.backends.batch import IntArray
from flowrl.graph.graph import EdgeKind, Graph, Op
from flowrl.graph.params import UpdateParams
from flowrl.graph.signatures import LOSSES
from flowrl.graph.types import Granularity
from flowrl.plan.plan import Layout
from flowrl.program.program import Rows
from flowrl.runtime.launchers.contract import BoundInput


def sample_spaces(graph: Graph) -> dict[str, str | None]:
    """For each op the generate op that made the samples it works on, or opens; None for ops on prompt rows.

    A reader of two spaces works in that of the generate call with its own label, else in the unlabelled one
    (LANGUAGE.md, "Binding" 3). What an environment's step writes stands in the rows of each generator that it plays
    with: a reader of nothing else works in those of the first.
    """
    ops = {op.id: op for op in graph.ops}
    played = generators_of_steps(graph)
    spaces: dict[str, str | None] = {op: generators[0] for op, generators in played.items()}

    def space(op: Op) -> str | None:
        if op.id not in spaces:
            spaces[op.id] = op.id if op.method == "generate" else own_space(op)
        return spaces[op.id]

    def own_space(op: Op) -> str | None:
        sources = {i.source for i in op.inputs if i.source is not None}
        known = sources - set(played) if any(space(ops[s]) for s in sources - set(played)) else sources
        found = sorted({s for each in known for s in [space(ops[each])] if s is not None})
        fitting = [s for s in found if ops[s].label == op.label] or [s for s in found if ops[s].label is None] or found
        return fitting[0] if fitting else None

    for op in graph.ops:
        space(op)
    return spaces


def generators_of_steps(graph: Graph) -> dict[str, tuple[str, ...]]:
    """The calls of generate that each environment's step plays with, in the order of the flow's edges."""
    found: dict[str, list[str]] = {}
    known = {op.id for op in graph.ops}
    for edge in graph.edges:
        if edge.kind is EdgeKind.INTERACTION and {edge.source, edge.target} <= known:
            found.setdefault(edge.target, []).append(edge.source)
    order = {edge.id: place for place, edge in enumerate(graph.declared)}
    by_edge = {(e.source, e.target): order.get(e.id, 0) for e in graph.declared if e.kind is EdgeKind.INTERACTION}
    return {
        step: tuple(sorted(generators, key=lambda each, step=step: (by_edge.get((each, step), 0), each)))
        for step, generators in found.items()
    }


def keeps_groups_whole(op: Op) -> bool:
    """Whether all samples of a prompt must go to one rank."""
    if op.granularity is Granularity.GROUP or op.method == "generate":  # whose rows are samples after a reset
        return True
    return isinstance(op.params, UpdateParams) and LOSSES[op.params.loss].whole_groups


def prompts_of(rows: Rows, prompt_ids: Sequence[int]) -> set[int]:
    """The prompts of the step that `rows` names, out of all of them in ascending order."""
    return set(prompt_ids[rows.start : rows.stop])


def rows_to_take(inputs: Sequence[BoundInput], prompts: set[int] | None) -> tuple[IntArray, IntArray, IntArray]:
    """Ids that every input joined by id has, of `prompts` (None: all): ids ascending, their prompts, their tokens
    (1 where no input knows). Each int64 [rows]."""
    by_id = [i for i in inputs if not i.by_prompt] or list(inputs)
    if not by_id:
        empty = np.zeros(0, dtype=np.int64)
        return empty, empty, empty
    prompt_of: dict[int, int] = {}
    for part in by_id[0].record.parts:
        prompt_of.update(zip(part.ids.tolist(), part.prompt_ids.tolist(), strict=True))
    common = set(prompt_of)
    for other in by_id[1:]:
        common &= {i for part in other.record.parts for i in part.ids.tolist()}
    ids = sorted(i for i in common if prompts is None or prompt_of[i] in prompts)
    tokens = _tokens(by_id)
    return (
        np.asarray(ids, dtype=np.int64),
        np.asarray([prompt_of[i] for i in ids], dtype=np.int64),
        np.asarray([tokens.get(i, 1) for i in ids], dtype=np.int64),
    )


def of_prompts(rows: tuple[IntArray, IntArray, IntArray], prompts: set[int]) -> tuple[IntArray, IntArray, IntArray]:
    """The rows (ids, prompts, tokens) that belong to `prompts`."""
    mine = np.isin(rows[1], np.fromiter(prompts, dtype=np.int64, count=len(prompts)))
    return rows[0][mine], rows[1][mine], rows[2][mine]


def _tokens(inputs: Sequence[BoundInput]) -> Mapping[int, int]:
    for bound in inputs:
        parts = bound.record.parts
        if any(part.token_lengths is not None for part in parts):
            return {
                i: n
                for part in parts
                if part.token_lengths is not None
                for i, n in zip(part.ids.tolist(), part.token_lengths.tolist(), strict=True)
            }
    return {}


def balance(ids: IntArray, groups: IntArray, tokens: IntArray, ranks: int) -> tuple[IntArray, ...]:
    """Share rows out to `ranks`, each unit (rows of one group number) whole: the longest first, to the rank with the
    fewest tokens (Graham 1969, "Bounds on multiprocessing timing anomalies": at most 4/3 of the best longest share).

    Ties go to the rank with fewer units, then to the lower rank; units of one length by their first id. Each rank's ids
    come back ascending; some may be empty.
    """
    if ranks == 1:
        return (ids,)
    units: dict[int, list[int]] = {}
    for place, group in enumerate(groups.tolist()):
        units.setdefault(group, []).append(place)
    order = sorted(units.values(), key=lambda places: (-int(tokens[places].sum()), int(ids[places[0]])))
    heap = [(0, 0, rank) for rank in range(ranks)]
    shares: list[list[int]] = [[] for _ in range(ranks)]
    for places in order:
        load, count, rank = heapq.heappop(heap)
        shares[rank].extend(places)
        heapq.heappush(heap, (load + int(tokens[places].sum()), count + 1, rank))
    return tuple(ids[np.sort(np.asarray(share, dtype=np.int64))] for share in shares)


def ids_by_rank(
    op: Op, layout: Layout, ids: IntArray, prompt_ids: IntArray, tokens: IntArray, backend: str | None = None
) -> tuple[IntArray, ...]:
    """The rows of each rank: all ranks of a dp replica take the same ones."""
    shares = balance(ids, prompt_ids if keeps_groups_whole(op) else ids, tokens, layout.dp)
    return tuple(shares[replica] for replica in replicas(layout, backend))


def replicas(layout: Layout, backend: str | None = None) -> tuple[int, ...]:
    """The dp replica of each rank. A replica's ranks are neighbours; but Megatron Core counts tp, cp, dp and then
    stages, so that a stage's ranks are (placement/sync/cuts.py counts so too)."""
    inner = layout.tp * layout.cp * (1 if backend == "megatron" else layout.pp)
    return tuple(rank // inner % layout.dp for rank in range(layout.devices))
