"""How long an edge's receiver waits for the other end, and what is done when that is too long.

Takes a stage, what stands at the heads of lanes and what is under way; names the wait that is over, and for `drop` the
groups that are whole without what is missing. Pure: the clock is the driver's, and so is what follows.

A wait counts while both ends are there: the receiver stands at the head of its lane and lacks the edge's token, and the
other end has begun to work for it. Before that it waits for somebody else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from flowrl.backends.batch import SAMPLE_ID_BITS, Batch, Column, IntArray, Ragged
from flowrl.diag.diagnostic import FlowError, diagnose
from flowrl.execution.contract import Firing
from flowrl.graph.graph import Edge, EdgeKind, Graph, Kind, Op
from flowrl.graph.types import Unit, element
from flowrl.plan.plan import StagePlan
from flowrl.program.program import InstructionKind
from flowrl.runtime.launchers.contract import Part, Work
from flowrl.runtime.rows import generators_of_steps, sample_spaces


class Policy(StrEnum):
    ABORT = "abort"
    RETRY = "retry"
    """The other end's ranks are made anew and its firing is submitted again. Seeds belong to samples, so the rows are
    those that would have come."""
    DROP = "drop"
    """Groups of which rows are missing leave the step, on every path: readers join by id."""


_STATELESS = (Kind.GENERATOR, Kind.SCORER, Kind.REWARD, Kind.ESTIMATOR)
_NUMPY = {
    "bool": "bool", "i8": "int8", "u8": "uint8", "i16": "int16", "i32": "int32", "i64": "int64", "f16": "float16",
    "bf16": "float32", "f32": "float32", "f64": "float64",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Overdue:
    """A wait that is over."""

    edge: Edge
    receiver: Firing
    work: Work
    """What the other end is at."""
    seconds: float

    @property
    def policy(self) -> Policy:
        return Policy(self.edge.on_timeout or Policy.ABORT)

    @property
    def told(self) -> str:
        limit = self.edge.timeout_seconds
        return f"`{self.receiver.instruction.id}` has waited {self.seconds:,.1f} s on `{self.edge.id}`, of {limit:g}"

    def error(self) -> FlowError:
        """FR0925: who waits for whom, on which edge, for how long."""
        source = self.work.firing.instruction
        facts = {
            "edge": self.edge.id,
            "receiver": self.receiver.instruction.id,
            "source": source.id,
            "seconds": f"{self.seconds:,.1f}",
            "limit": f"{self.edge.timeout_seconds:g}",
            "step": self.receiver.step,
        }
        notes = [f"pool {source.pool}, role {source.role}: `{source.id}` has not ended"]
        return FlowError(diagnose("FR0925", self.edge.span, notes=notes, **facts))


class Waits:
    """The edges of a stage whose waits end, and since when each is waited on."""

    def __init__(self, stage: StagePlan) -> None:
        timed = {edge.id: edge for edge in stage.graph.declared if edge.timeout_seconds is not None}
        self._edges = {c.id: (timed[c.edge], c.source) for c in stage.programs.channels if c.edge in timed}
        self._since: dict[tuple[str, int], float] = {}

    def overdue(
        self, now: float, lacking: Iterable[tuple[Firing, Sequence[str]]], flying: Mapping[tuple[str, int], Work]
    ) -> Overdue | None:
        """The first wait that has lasted too long; it then counts from now again. To be asked often: a wait begins
        when it is first seen. `lacking`: firings at the heads of lanes, and their channels without a token."""
        if not self._edges:
            return None
        since: dict[tuple[str, int], float] = {}
        found: Overdue | None = None
        for receiver, channels in lacking:
            for channel in (c for c in channels if c in self._edges and not receiver.idle):
                edge, source = self._edges[channel]
                work = _under_way(flying, source)
                if work is None:
                    continue
                key = (channel, receiver.step)
                since[key] = self._since.get(key, now)
                seconds, limit = now - since[key], edge.timeout_seconds
                if found is None and limit is not None and seconds > limit:
                    since[key] = now
                    found = Overdue(edge, receiver, work, seconds)
        self._since = since
        return found


def _under_way(flying: Mapping[tuple[str, int], Work], instruction: str) -> Work | None:
    return next((work for (id, _), work in flying.items() if id == instruction), None)


# -- dropping ---------------------------------------------------------------------------------------------------------


def whole_groups(op: Op, work: Work, parts: Sequence[Part]) -> tuple[tuple[Part, ...], int]:
    """Of the parts that are there, the rows whose group is whole, and how many groups are not. Rows of a group that
    leaves stay in the batches behind the handles; nobody will ask for them."""
    asked = _joined(list(work.rank_ids or ()))
    if op.method == "generate":  # it is asked by prompts, and a prompt's samples come from one rank
        missing = np.setdiff1d(asked, _joined([part.prompt_ids for part in parts]))
        return tuple(parts), len(missing)
    lost = np.setdiff1d(asked, _joined([part.ids for part in parts]))
    missing = np.unique(lost >> SAMPLE_ID_BITS)
    return tuple(_without(part, missing) for part in parts), len(missing)


def _without(part: Part, prompts: IntArray) -> Part:
    stay = ~np.isin(part.prompt_ids, prompts)
    lengths = None if part.token_lengths is None else part.token_lengths[stay]
    return replace(part, ids=part.ids[stay], prompt_ids=part.prompt_ids[stay], token_lengths=lengths)


def _joined(ids: Sequence[IntArray]) -> IntArray:
    return np.unique(np.concatenate(ids)) if ids else np.zeros(0, dtype=np.int64)


def no_rows(op: Op) -> Batch:
    """What an op that has made nothing gives its readers: its columns without rows."""
    none = np.zeros(0, dtype=np.int64)

    def column(unit: Unit, dtype: str) -> Column:
        if element(dtype) not in _NUMPY:
            return ()
        values = np.zeros(0, dtype=_NUMPY[element(dtype)])
        return Ragged(values, none) if unit is Unit.TOKEN else values

    return Batch(none, none, {field.name: column(field.unit, field.dtype) for field in op.outputs})


# -- what cannot be ---------------------------------------------------------------------------------------------------


def refused(stage: StagePlan) -> Iterator[tuple[Edge, Policy, str]]:
    """Timed edges whose policy cannot be carried out, and why."""
    for edge in (e for e in stage.graph.declared if e.timeout_seconds is not None and not e.derived):
        policy = Policy(edge.on_timeout or Policy.ABORT)
        reason = None if policy is Policy.ABORT else _obstacle(stage, edge, policy)
        if reason is not None:
            yield edge, policy, reason


def _obstacle(stage: StagePlan, edge: Edge, policy: Policy) -> str | None:
    graph = stage.graph
    if edge.kind is not EdgeKind.DATA:
        return "weights, of which there is no part to leave out and no second source"
    source = next((op for op in graph.ops if op.id == edge.source), None)
    if source is None:
        return None
    kind = graph.role(source.role).kind
    allowed = (*_STATELESS, Kind.DATA) if policy is Policy.RETRY else _STATELESS
    if kind not in allowed:
        return f"rows of a {kind}"
    sessions = {i.op for i in stage.programs.instructions if i.kind is InstructionKind.OPEN}
    if source.id in sessions:
        return "generation that is handed on in parts"
    if policy is Policy.DROP and any(source.id in played for played in generators_of_steps(graph).values()):
        return "rows of episodes, which leave when all of them are over"
    if policy is Policy.DROP and _is_read_by_prompt(graph, source):
        return "rows that others read by their prompt"
    return None


def _is_read_by_prompt(graph: Graph, source: Op) -> bool:
    """Whether a reader of other samples, or of none, needs a row of every prompt from `source`."""
    spaces = sample_spaces(graph)
    readers = (op for op in graph.ops if any(i.source == source.id for i in op.inputs))
    return any(spaces[reader.id] != spaces[source.id] for reader in readers)
