"""StageState: what the driver knows of a stage's dataflow. Firing → Work to submit; Completion → what has changed.

Records, weight versions and data cursors, all by handle and count; no clock, no launcher, no files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np

from flowrl.backends.batch import IntArray
from flowrl.diag.diagnostic import InternalError
from flowrl.execution.contract import Firing
from flowrl.graph.graph import Kind, Op
from flowrl.graph.params import DataParams, UpdateParams
from flowrl.graph.rates import versions_per_step
from flowrl.plan.plan import Layout, StagePlan
from flowrl.program.program import Channel, ChannelKind, Instruction, InstructionKind, Program, Rows
from flowrl.program.rounds import last_ops
from flowrl.program.sessions import sessions_that_go_on
from flowrl.runtime.ages import Ages
from flowrl.runtime.arrivals import Arrivals
from flowrl.runtime.carried import Bounds, Carried
from flowrl.runtime.draws import Draws, Fates
from flowrl.runtime.launchers.contract import BoundInput, Completion, Versions, Work
from flowrl.runtime.records import READS, RecordStore
from flowrl.runtime.routes import Peek, Routes
from flowrl.runtime.rows import ids_by_rank, of_prompts, prompts_of, rows_to_take
from flowrl.runtime.verdicts import Chosen, Verdicts
from flowrl.runtime.versions import Cursors, WeightEdge

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StartPoint:
    """Where a stage starts: after `step` steps, in the state that a checkpoint of that step describes."""

    step: int = 0
    cursors: Mapping[str, int] = field(default_factory=dict[str, int])
    waiting: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    """Weights edge → versions that wait on it; without an entry version 0."""
    republish: frozenset[str] = frozenset()
    """Weights edges whose newest version is the restored weights, to be sent once more."""
    folder: Path | None = None
    carried: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    """Call of generate whose session goes on → prompts that it had and had not given."""


@dataclass(frozen=True, slots=True)
class Trained:
    """Rows that an update has taken: sample ids (prompt ids where there are no samples), their prompts and tokens."""

    op: str
    data: str
    step: int
    ids: IntArray
    prompt_ids: IntArray
    tokens: IntArray
    versions: Versions | None
    """The weight versions that the samples were made with; None where they come from a data set."""
    version: int
    """The newest weight version when the step's training began: published for the samples' generator up to the step
    before. It less that of a sample's oldest token is the sample's lag."""
    by_version: Mapping[int, int] = field(default_factory=dict[int, int])
    """Tokens of the step's samples that the policy wrote under each version."""

    @property
    def made_with(self) -> int | None:
        """The version of the oldest token of all."""
        return None if self.versions is None else int(self.versions.oldest.min(initial=self.version))

    @property
    def newest(self) -> int | None:
        """The version of the newest token of all."""
        return None if self.versions is None else int(self.versions.newest.max(initial=0))


class StageState:
    def __init__(
        self, stage: StagePlan, is_idle: Callable[[Instruction, int], bool], start: StartPoint, peek: Peek
    ) -> None:
        self._graph = stage.graph
        self._senders = _by_edge(stage.programs, InstructionKind.SEND_WEIGHTS)
        self._receivers = _by_edge(stage.programs, InstructionKind.RECEIVE_WEIGHTS)
        going_on = sessions_that_go_on(stage.programs)
        self.records = RecordStore(stage.graph, stage.programs, is_idle, going_on)
        roles = {stage.graph.op(op).role for op in going_on}
        newest = {id for id, receive in self._receivers.items() if receive.role in roles}
        self.edges = {
            id: WeightEdge(
                id,
                start.waiting.get(id, (0,) * sum(channel.initial_tokens for channel in own)),
                start.step,
                newest=id in newest,
                count=len(own),
            )
            for id, own in _weights_channels(stage.programs).items()
        }
        self._republish = start.republish
        self.cursors = Cursors(start.cursors)
        self._layouts = {placed.role: placed.layout for pool in stage.pools for placed in pool.roles}
        self.carried = {op: self._carried(stage, op, is_idle, start) for op in going_on}
        self._drawn_by = {self.records.data_of(stage.graph.op(op)).id: one for op, one in self.carried.items()}
        """By data set, what draws its prompts."""
        self._ages = Ages()
        self._arrivals = Arrivals(stage.graph, stage.programs.instructions)
        self._trained: dict[tuple[str, int], Trained] = {}
        self._verdicts = Verdicts(stage.graph, self.records.space)
        self.draws = Draws(stage.graph)
        self._routes = Routes(stage.graph, self.records.inputs_so_far, peek)
        self._is_idle = is_idle
        self._ends = [i for i in stage.programs.instructions if i.op in last_ops(stage.graph)]
        """What ends a round of refill."""
        self._read: dict[int, list[Firing]] = {}
        """By step, firings of a round: a further one may read what they have read."""

    def work(self, firing: Firing, save_to: Path | None) -> Work | None:
        """What to submit; None if there is nothing to do: an idle firing, or weights that are already there."""
        kind = firing.instruction.kind
        if kind is InstructionKind.SEND_WEIGHTS:
            version = self._edge(firing).send(firing.step, idle=firing.idle, firing=firing.instruction.firing)
            return None if firing.idle else Work(firing, version=version)
        if kind is InstructionKind.RECEIVE_WEIGHTS:
            version = self._edge(firing).receive()
            held = firing.idle or version == self._edge(firing).held
            return None if held else Work(firing, version=version)
        if firing.idle:
            return None
        if kind is InstructionKind.OPEN and firing.instruction.op in self.carried:
            return self._open(firing, self.carried[firing.instruction.op])
        if kind in (InstructionKind.RUN, InstructionKind.OPEN):
            return self._run(firing)
        if kind is InstructionKind.TAKE:
            return self._take(firing)
        if kind is InstructionKind.SAVE and save_to is not None:
            return self.save(firing, save_to)
        return Work(firing)

    def save(self, firing: Firing, folder: Path) -> Work:
        """Save the role, and the versions of its weights that wait between this step and the next."""
        keep: dict[str, tuple[int, ...]] = {}
        for id, edge in self.edges.items():
            waiting = set(edge.waiting_at_end(firing.step)) - {0}
            if edge.is_fresh(firing.step):
                waiting.discard(edge.at_end(firing.step))
            if waiting and self._senders[id].role == firing.instruction.role:
                keep[id] = tuple(sorted(waiting))
        return Work(firing, folder=folder, keep_weights=keep)

    def republish(self) -> tuple[Work, ...]:
        """After a restore: edges whose newest version is the restored weights send them once more."""
        return tuple(
            Work(Firing(instruction=instruction, step=0), version=self.edges[edge].now)
            for edge, instruction in self._senders.items()
            if edge in self._republish
        )

    def completed(self, completion: Completion) -> Trained | None:
        """Take note of a completion without error; for an update, what it trained on."""
        firing = completion.work.firing
        if firing.instruction.kind is InstructionKind.RECEIVE_WEIGHTS:
            self._edge(firing).held = completion.work.version
        if firing.instruction.kind is InstructionKind.SEND_WEIGHTS:
            self._edge(firing).there = completion.work.version
        if firing.instruction.kind not in READS or firing.instruction.op is None:
            return None
        op = self._graph.op(firing.instruction.op)
        if op.id in self._drawn_by:
            drawn = [id for part in completion.parts for id in part.ids.tolist()]
            self._drawn_by[op.id].drawn(firing.step, drawn, self.cursors.start(op.id))
        self._advance(op, completion)
        if firing.instruction.kind is InstructionKind.TAKE:
            self._arrivals.add(op.id, firing.step, firing.instruction.firing, completion.parts)
        if op.id in self.carried and firing.instruction.kind is InstructionKind.TAKE:
            gone = {id for part in completion.parts for id in (*part.prompt_ids.tolist(), *part.dropped)}
            tagged = [part.versions.oldest for part in completion.parts if part.versions is not None]
            oldest = min((int(each.min()) for each in tagged if len(each)), default=None)
            self.carried[op.id].gave(firing.step, sorted(gone), oldest)
        if op.method == "select":
            self.draws.left(op.id, firing.step, self._verdicts.add(op, firing.step, completion.parts))
        if op.method == "generate":
            self._ages.add(op.id, firing.step, completion.parts, self._held(op.role))
        self.records.add(firing, completion.parts)
        if op.id in self.draws.round:
            self._read.setdefault(firing.step, []).append(firing)
        else:
            self.records.done(firing)
        return self._trained.pop((firing.instruction.id, firing.step), None)

    def is_enough(self, step: int, rounds: int) -> bool:
        """Whether so many rounds of refill have left the step's prompts; 0: of a step in which no filter works. If they
        have, the rounds are over: the rest of the step works on these prompts. Raises FlowError FR0856 where no further
        round may be."""
        refill = self._graph.step.refill
        if refill is not None and rounds and self.draws.is_short(step):
            if rounds < refill.max_rounds:
                return False
            raise self.draws.too_few(step, rounds)
        if rounds:
            self._verdicts.narrow(step, self.draws.choose(step))
        for firing in {each.instruction.id: each for each in self._read.pop(step, ())}.values():
            self.records.done(firing)
        return True

    def fates(self, step: int) -> tuple[Fates, ...]:
        """What has become of the prompts that the step has drawn and filters decide on."""
        return self.draws.fates(step, self._drawn_by)

    def step_done(self, step: int) -> None:
        self.records.step_done(step)
        self.draws.step_done(step)
        self._routes.step_done(step)
        self._ages.step_done(step)
        self._arrivals.step_done(step)
        for each in self.carried.values():
            each.step_done(step)
        if self.carried:
            self.records.keep(frozenset().union(*(each.needed() for each in self.carried.values())))
        self._verdicts.step_done(step)

    def made_with(self, op: Op, step: int, id: int) -> int | None:
        """The weight version of the oldest token of the sample `id` that `op` made."""
        return self._ages.oldest(op.id, step, id)

    def _run(self, firing: Firing) -> Work | None:
        instruction = firing.instruction
        if instruction.op is None:
            raise InternalError(f"`{instruction.id}` runs no op")
        op = self._graph.op(instruction.op)
        if self._graph.role(op.role).kind is Kind.DATA:
            return self._rows(firing, op)
        now = self.draws.now(op.id, firing.step)
        inputs = self.draws.of_round(self.records.inputs(op, firing.step), now)
        rows = self._rows_of(firing, op, self._routes.joined(op, inputs), now)
        rows = self._verdicts.unmasked(op, firing.step, rows)
        ids, prompt_ids, tokens = self._routes.taken(op, firing.step, rows)
        if instruction.rows.arrived and not len(ids):
            return None  # a session that was begun again gave more with an earlier take
        if isinstance(op.params, UpdateParams):
            self._trained[instruction.id, firing.step] = self._training(op, firing.step, (ids, prompt_ids, tokens))
        layout = self._layouts.get(op.role, Layout())
        backend = self._graph.role(op.role).backend
        return Work(firing, inputs=inputs, rank_ids=ids_by_rank(op, layout, ids, prompt_ids, tokens, backend))

    def _take(self, firing: Firing) -> Work:
        assert firing.instruction.op is not None
        op = self._graph.op(firing.instruction.op)
        inputs = self.records.inputs(op, firing.step)
        if op.id not in self.carried:
            return Work(firing, inputs=inputs, by_prompt=self._arrivals.by_prompt(op.id))
        take = firing.instruction
        gathers = self.carried[op.id].gather(firing.step, take.firing + 1, take.firings)
        return Work(firing, inputs=inputs, by_prompt=True, gathers=self._of_ranks(op, gathers))

    def _open(self, firing: Firing, carried: Carried) -> Work:
        """Prompts that begin in this step, of a session that goes on."""
        op = self._graph.op(firing.instruction.op or "")
        joins = carried.begun
        ids = self._of_ranks(op, carried.open(firing.step, self._held(op.role)))
        return Work(firing, inputs=self.records.inputs(op, firing.step), rank_ids=ids, joins=joins)

    def _of_ranks(self, op: Op, shares: Sequence[T]) -> tuple[T, ...]:
        """What each data-parallel replica gets, for each of its ranks."""
        layout = self._layouts.get(op.role, Layout())
        return tuple(shares[rank // (layout.devices // layout.dp)] for rank in range(layout.devices))

    def _carried(
        self, stage: StagePlan, op: str, is_idle: Callable[[Instruction, int], bool], start: StartPoint
    ) -> Carried:
        graph = stage.graph
        edges = [id for id, receive in self._receivers.items() if receive.role == graph.op(op).role]
        sends = [i for i in stage.programs.instructions if i.kind is InstructionKind.SEND_WEIGHTS and i.edge in edges]
        first = max(self.edges[id].now for id in edges)
        published = [first]

        def version_at(step: int) -> int:
            """Versions are published in the steps in which a send is not idle."""
            while len(published) <= step - start.step:
                step_now = start.step + len(published)
                published.append(published[-1] + sum(not is_idle(send, step_now) for send in sends))
            return published[max(0, step - start.step)]

        lag = min(each.tokens - versions_per_step(graph, each) for each in graph.edges if each.id in edges)
        drops = graph.schedule.when_stale == "drop"
        bounds = Bounds(graph.step.prompts, stage.run.steps, lag, drops, version_at)
        dp = self._layouts.get(graph.op(op).role, Layout()).dp
        return Carried(bounds, dp, start.step, start.carried.get(op, ()))

    def _rows_of(self, firing: Firing, op: Op, inputs: Sequence[BoundInput], now: set[int] | None) -> Chosen:
        """All rows of the step that filters have left, or of `now`, the prompts of a round; the prompts of a minibatch;
        or what takes have given."""
        rows = firing.instruction.rows
        if rows == Rows():
            return self._verdicts.left(op, firing.step, rows_to_take(inputs, now))
        if isinstance(op.params, UpdateParams) and not rows.arrived:
            left = self._verdicts.left(op, firing.step, rows_to_take(inputs, None))
            return of_prompts(left, prompts_of(rows, self._prompts(op, firing.step, left)))
        given = self._arrivals.given(self.records.space(op) or "", firing)
        ids, prompt_ids, tokens = rows_to_take(inputs, None)
        mine = np.isin(ids, given)
        return ids[mine], prompt_ids[mine], tokens[mine]

    def _prompts(self, op: Op, step: int, left: Chosen) -> list[int]:
        """The prompts that minibatches share out: those of the step, where a filter drops rows those that it left."""
        if not self._verdicts.drop_rows_of(op):
            return self.records.prompt_ids(op, step)
        return np.unique(left[1]).tolist()

    def _filters_work(self, step: int) -> bool:
        return not any(self._is_idle(i, step) for i in self._ends)

    def _rows(self, firing: Firing, op: Op) -> Work:
        """Rows of a data set: the next ones in training, the whole set from its start in validation."""
        assert isinstance(op.params, DataParams)
        count = op.params.prompts
        start = 0 if count is None else self.cursors.start(op.id)
        if op.id in self._drawn_by:
            start, count = self._drawn_by[op.id].draw(firing.step, start)
        elif count is not None and self.draws.is_refilled(op.id) and self._filters_work(firing.step):
            count = self.draws.count(op.id, firing.step)
        return Work(firing, prompt_start=start, prompt_count=count)

    def _advance(self, op: Op, completion: Completion) -> None:
        count = completion.work.prompt_count
        if self._graph.role(op.role).kind is not Kind.DATA or count is None:
            return
        self.draws.drew(op.id, completion.work.firing.step, [part.prompt_ids for part in completion.parts])
        given = [int(part.prompt_ids[-1]) + 1 for part in completion.parts if len(part.ids)]
        self.cursors.advance(op.id, completion.work.firing.step, max([completion.work.prompt_start + count, *given]))

    def _training(self, op: Op, step: int, rows: Chosen) -> Trained:
        data = self.records.data_of(op).id
        space = self.records.space(op)
        generator = None if space is None else self._graph.op(space).role
        edges = [edge for edge, receiver in self._receivers.items() if receiver.role == generator]
        version = max((self.edges[edge].at_end(step - 1) for edge in edges), default=0)
        versions, tokens = self._ages.of(space, step, rows[0]), self._ages.tokens(space, step)
        return Trained(op.id, data, step, *rows, versions=versions, version=version, by_version=tokens)

    def _held(self, role: str) -> int:
        return max((self.edges[e].held for e, i in self._receivers.items() if i.role == role), default=0)

    def _edge(self, firing: Firing) -> WeightEdge:
        edge = firing.instruction.edge
        if edge is None or edge not in self.edges:
            raise InternalError(f"`{firing.instruction.id}` has no weights edge")
        return self.edges[edge]


def _weights_channels(program: Program) -> dict[str, list[Channel]]:
    """The channels of each weights edge: one for each version that a step publishes."""
    found: dict[str, list[Channel]] = {}
    for channel in program.channels:
        if channel.kind is ChannelKind.WEIGHTS and channel.edge is not None:
            found.setdefault(channel.edge, []).append(channel)
    return found


def _by_edge(program: Program, kind: InstructionKind) -> dict[str, Instruction]:
    return {i.edge: i for i in program.instructions if i.kind is kind and i.edge is not None}
