"""One topological order of the whole step, from which each pool takes its share.

Data and state come first; among instructions that are free, the phase decides, then the role (so that a role is loaded
as seldom as possible), then the order of the graph.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

import networkx as nx

from flowrl.compiler.emit.instructions import Draft, by_op, role_of_end
from flowrl.diag.diagnostic import InternalError
from flowrl.graph.graph import EdgeKind, Graph
from flowrl.graph.interactions import interactions
from flowrl.graph.rows import rows_of
from flowrl.program.phases import PHASES, Phase
from flowrl.program.program import Instruction, InstructionKind
from flowrl.program.rounds import last_ops

_MINOR = (
    InstructionKind.RECEIVE_WEIGHTS,
    InstructionKind.RUN,
    InstructionKind.SEND_WEIGHTS,
    InstructionKind.SAVE,
)

Arc = tuple[str, str]


def in_order(drafts: Sequence[Draft], graph: Graph) -> tuple[Draft, ...]:
    """The drafts in a topological order of the step; deterministic."""
    by_id = {draft.instruction.id: draft for draft in drafts}
    keys = _keys(drafts, graph)
    members = _members(drafts, graph)
    head = {id: first for first, group in members.items() for id in group}

    def key(id: str) -> tuple[int, int, int, int]:
        return keys[id]

    digraph: nx.DiGraph[str] = nx.DiGraph()
    digraph.add_nodes_from(members)
    arcs = [*_data_arcs(drafts, graph), *_role_arcs(drafts), *_round_arcs(drafts, graph)]
    digraph.add_edges_from((head[a], head[b]) for a, b in arcs)
    try:
        order = nx.lexicographical_topological_sort(digraph, key=key)
        return tuple(by_id[id] for first in order for id in members[first])
    except nx.NetworkXUnfeasible as cycle:
        raise InternalError(f"graph `{graph.name}` has a cycle within a step") from cycle


def _members(drafts: Sequence[Draft], graph: Graph) -> dict[str, tuple[str, ...]]:
    """What has one place in the order: an interaction's instructions by the first of them, everything else alone."""
    found: dict[str, tuple[str, ...]] = {}
    tied = {op: group for group in interactions(graph) for op in group}
    for draft in drafts:
        own = draft.instruction
        group = tied.get(own.op or "", ())
        ids = tuple(d.instruction.id for d in drafts if d.instruction.op in group) if group else ()
        if not ids or own.id == ids[0]:
            found[own.id] = ids or (own.id,)
    return found


def _data_arcs(drafts: Sequence[Draft], graph: Graph) -> list[Arc]:
    arcs: list[Arc] = []
    instructions = by_op(drafts)
    for edge in graph.edges:
        if edge.kind not in (EdgeKind.DATA, EdgeKind.STATE) or edge.tokens:
            continue  # an edge with tokens orders steps, not what happens within one
        ends = (instructions[edge.source], instructions[edge.target])
        arcs.extend((source.id, target.id) for source in ends[0] for target in ends[1])
    return arcs


def _role_arcs(drafts: Sequence[Draft]) -> list[Arc]:
    """Within a role: weights received, then everything that reads them, then updates in turn, each version sent after
    the update that makes it and before the next one, then save."""
    by_role: dict[str, list[Instruction]] = defaultdict(list)
    for draft in drafts:
        by_role[draft.instruction.role].append(draft.instruction)
    arcs: list[Arc] = []
    for own in by_role.values():
        groups = (
            [i for i in own if i.kind is InstructionKind.RECEIVE_WEIGHTS],
            [i for i in own if i.kind is InstructionKind.RUN and not _is_update(i)],
            [i for i in own if _is_update(i)],
            [i for i in own if i.kind is InstructionKind.SAVE],
        )
        kept = [group for group in groups if group]
        arcs.extend((a.id, b.id) for before, after in pairwise(kept) for a in before for b in after)
        arcs.extend((a.id, b.id) for a, b in pairwise(groups[2]))
        for send in (i for i in own if i.kind is InstructionKind.SEND_WEIGHTS):
            arcs.extend(_around(send, groups))
    return arcs


def _round_arcs(drafts: Sequence[Draft], graph: Graph) -> list[Arc]:
    """With refill everything that no round needs comes after the rounds: some of it waits for their end, and nothing
    of a round may stand behind that."""
    own = rows_of(graph).round
    roles = {graph.op(op).role for op in own}
    ends = [d.instruction.id for d in drafts if d.instruction.op in last_ops(graph)] if own else []
    after = [
        d.instruction.id
        for d in drafts
        if d.instruction.op not in own
        and not (d.instruction.kind is InstructionKind.RECEIVE_WEIGHTS and d.instruction.role in roles)
    ]
    return [(end, each) for end in ends for each in after]


def _around(send: Instruction, groups: Sequence[Sequence[Instruction]]) -> list[Arc]:
    """What comes before a send and what after it."""
    receives, reads, updates, saves = groups
    made = len(updates) * (send.firing + 1) // send.firings
    before = updates[made - 1 : made] or [*receives, *reads]
    return [*((a.id, send.id) for a in before), *((send.id, b.id) for b in [*updates[made : made + 1], *saves])]


def _is_update(instruction: Instruction) -> bool:
    return instruction.op is not None and instruction.op.split("@")[0].endswith(".update")


def _keys(drafts: Sequence[Draft], graph: Graph) -> dict[str, tuple[int, int, int, int]]:
    ranks = _role_ranks(graph)
    return {
        draft.instruction.id: (
            PHASES.index(draft.phase),
            ranks[draft.instruction.role] if draft.phase is not Phase.FORWARD else -ranks[draft.instruction.role],
            _MINOR.index(draft.instruction.kind),
            place,
        )
        for place, draft in enumerate(drafts)
    }


def _role_ranks(graph: Graph) -> dict[str, int]:
    """Trainers whose weights others wait for come first in training, and so last in the forward passes before it."""
    publishing = {role_of_end(edge.source) for edge in graph.edges if edge.kind is EdgeKind.WEIGHTS}
    trained = {op.role for op in graph.ops if op.method == "update"}

    def rank(name: str) -> int:
        return 0 if name in publishing else 1 if name in trained else 2

    names = sorted((role.name for role in graph.roles), key=rank)
    return {name: place for place, name in enumerate(names)}
