"""The inline launcher: every role in this process, one rank each, no Ray. `submit` does the work before it returns.

Several pools and any placement are allowed; they take turns here. Weights travel through memory of this process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from flowrl.backends.batch import Batch
from flowrl.backends.contract import Metrics, TensorSpec
from flowrl.backends.envs.conversation import Here, converse
from flowrl.diag.diagnostic import FlowError, InternalError, diagnose
from flowrl.plan.plan import Plan, StagePlan
from flowrl.program.program import MOVES, ChannelKind, InstructionKind
from flowrl.runtime.assemble import Source
from flowrl.runtime.checkpoint import kept_weights, weights_file
from flowrl.runtime.interact import Meetings, has_reset
from flowrl.runtime.launchers.contract import Completion, Part, Work
from flowrl.runtime.setups import (
    RoleSetup,
    call_of,
    is_data_call,
    model_folders,
    owners_first,
    role_setups,
    take_of,
    trainers_beside,
)
from flowrl.runtime.weights import LocalBuffer, buffer_bytes
from flowrl.runtime.worker import ENDS, MakeRank, RoleWorker, part_of, rows_with

_AXES = ("dp", "tp", "pp", "cp")

Outcome = tuple[tuple[Part, ...], Metrics]


class InlineLauncher:
    """The Launcher contract without processes. `make_rank` is the registry's unless a test gives another."""

    def __init__(self, threads: int = 1, make_rank: MakeRank | None = None) -> None:
        self._threads = threads
        self._make_rank = make_rank
        self._stage: StagePlan | None = None
        self._workers: dict[str, RoleWorker] = {}
        self._buffers: dict[str, tuple[LocalBuffer, tuple[TensorSpec, ...]]] = {}
        self._completed: list[Completion] = []
        self._started: tuple[Plan, StagePlan, Path] | None = None
        self._meetings: Meetings | None = None

    def start(self, plan: Plan, stage: StagePlan, run_folder: Path, restore: Path | None) -> None:
        self._started = (plan, stage, run_folder)
        setups = role_setups(plan, stage, model_folders(plan, stage, run_folder), self._threads)
        _require_one_rank(stage, setups)
        self._stage, self._meetings = stage, Meetings(stage)
        beside = trainers_beside(stage, setups)
        for setup in owners_first(setups, beside):
            lender = self._workers.get(beside.get(setup.role, ""))
            own = setup.ranks[0] if lender is None else replace(setup.ranks[0], beside=lender.base())
            worker = RoleWorker(own, self._make_rank)
            self._workers[setup.role] = worker
            if restore is not None:
                worker.restore(restore)
        if restore is not None:
            self._restore_weights(stage, restore)

    def submit(self, work: Work) -> None:
        members = None if self._meetings is None else self._meetings.add(work)
        if members is not None:
            if members:
                self._completed += self._play(members)
            return
        started = time.monotonic()
        try:
            parts, metrics = self._do(work)
            error = None
        except Exception as failure:
            parts, metrics, error = (), {}, failure
        seconds = time.monotonic() - started
        self._completed.append(Completion(work, parts, metrics, started, seconds, error))

    def poll(self, timeout_seconds: float) -> Sequence[Completion]:
        completed, self._completed = self._completed, []
        return completed

    def peek(self, part: Part, fields: Sequence[str], ids: Sequence[int]) -> Batch:
        return rows_with(part.handle, fields, ids)

    def give_up(self, work: Work, nothing: Batch) -> Sequence[Part]:
        """Nothing is under way here when somebody can ask."""
        return (part_of(nothing, nothing),)

    def revive(self, role: str) -> None:
        """For tests, whose ranks may be lost: ours share this process."""
        former = self._workers[role]
        with suppress(Exception):
            former.close()
        self._workers[role] = RoleWorker(former.setup, self._make_rank)

    def rewind(self, restore: Path | None, anew: Collection[str]) -> None:
        started = self._started
        assert started is not None
        self.close()
        self.start(*started, restore)

    def close(self) -> None:
        workers, self._workers = self._workers, {}
        buffers, self._buffers = self._buffers, {}
        self._completed = []
        for buffer, _ in buffers.values():
            buffer.close()
        for worker in workers.values():
            worker.close()

    def _do(self, work: Work) -> Outcome:
        verbs: dict[InstructionKind, Callable[[RoleWorker, Work], Outcome]] = {
            InstructionKind.RUN: self._run,
            InstructionKind.OPEN: self._open,
            InstructionKind.TAKE: _take,
            **dict.fromkeys((*MOVES, *ENDS), _move),
            InstructionKind.SEND_WEIGHTS: self._send,
            InstructionKind.RECEIVE_WEIGHTS: self._receive,
            InstructionKind.SAVE: self._save,
        }
        instruction = work.firing.instruction
        return verbs[instruction.kind](self._workers[instruction.role], work)

    def _play(self, members: Sequence[Work]) -> list[Completion]:
        """An interaction, whose members end together."""
        started = time.monotonic()
        try:
            made, error = self._conversed(members), None
        except Exception as failure:
            made, error = {}, failure
        seconds = time.monotonic() - started
        outcomes = [(work, *made.get(work.firing.instruction.id, ((), {}))) for work in members]
        return [Completion(work, parts, metrics, started, seconds, error) for work, parts, metrics in outcomes]

    def _conversed(self, members: Sequence[Work]) -> dict[str, Outcome]:
        """What each of them has made, by instruction."""
        assert self._stage is not None
        world, *generators = members
        agents = {work.firing.instruction.role: work for work in generators}
        for role, work in agents.items():
            ids = None if work.rank_ids is None else work.rank_ids[0]
            call = call_of(self._stage, work)
            reset = has_reset(self._stage.graph, call.op)
            samples = self._workers[role].begin(call, _sources(work), ids, reset=reset)
        env = self._workers[world.firing.instruction.role]
        speakers = {role: self._workers[role].rank for role in agents}
        left = converse(env.rank, Here(speakers), tuple(agents), call_of(self._stage, world), samples)
        made: dict[str, Outcome] = {world.firing.instruction.id: ((), left.metrics)}
        for role, work in agents.items():
            result = speakers[role].finish(left.rows[role])
            made[work.firing.instruction.id] = ((part_of(result.batch, result.batch),), result.metrics)
        return made

    def _run(self, worker: RoleWorker, work: Work) -> Outcome:
        assert self._stage is not None
        if is_data_call(self._stage, work):
            result = worker.rows(work.prompt_start, work.prompt_count)
        else:
            ids = None if work.rank_ids is None else work.rank_ids[0]
            result = worker.run(call_of(self._stage, work), _sources(work), ids)
        parts = () if result.batch is None else (part_of(result.batch, result.batch),)
        return parts, result.metrics

    def _open(self, worker: RoleWorker, work: Work) -> Outcome:
        assert self._stage is not None
        ids = None if work.rank_ids is None else work.rank_ids[0]
        worker.open(call_of(self._stage, work), _sources(work), ids, work.given)
        return (), {}

    def _send(self, worker: RoleWorker, work: Work) -> Outcome:
        edge = work.firing.instruction.edge
        assert edge is not None
        worker.write_weights(self._buffer(edge, worker), work.version, edge)
        return (), {}

    def _receive(self, worker: RoleWorker, work: Work) -> Outcome:
        edge = work.firing.instruction.edge
        if edge not in self._buffers:
            raise InternalError(f"version {work.version} of `{edge}` was never sent")
        buffer, manifest = self._buffers[edge]
        worker.read_weights(manifest, buffer, work.version)
        return (), {}

    def _save(self, worker: RoleWorker, work: Work) -> Outcome:
        if work.folder is None:
            raise InternalError(f"`{work.firing.instruction.id}` has no folder")
        worker.save(work.folder)
        for edge, versions in work.keep_weights.items():
            for version in versions:
                file = weights_file(work.folder, edge, version)
                file.parent.mkdir(parents=True, exist_ok=True)
                with self._buffers[edge][0].reading(version) as array:
                    array.tofile(file)
        return (), {}

    def _restore_weights(self, stage: StagePlan, folder: Path) -> None:
        """The weight versions that waited on edges when the checkpoint was made."""
        for instruction in stage.programs.instructions:
            edge = instruction.edge
            if instruction.kind is not InstructionKind.SEND_WEIGHTS or edge is None:
                continue
            for version, file in kept_weights(folder, edge):
                with self._buffer(edge, self._workers[instruction.role]).writing(version) as array:
                    array[:] = np.fromfile(file, dtype=np.uint8)

    def _buffer(self, edge: str, source: RoleWorker) -> LocalBuffer:
        if edge not in self._buffers:
            manifest = source.manifest(edge)
            self._buffers[edge] = (LocalBuffer(buffer_bytes(manifest), slots=self._slots(edge)), manifest)
        return self._buffers[edge][0]

    def _slots(self, edge: str) -> int:
        """One more than versions may wait: none is overwritten before it is read."""
        assert self._stage is not None
        channels = self._stage.programs.channels
        waiting = [c.capacity for c in channels if c.kind is ChannelKind.WEIGHTS and c.edge == edge]
        return max(1, sum(waiting)) + 1


def _take(worker: RoleWorker, work: Work) -> Outcome:
    result = worker.take(*take_of(work, 0))
    parts = () if result.batch is None else (part_of(result.batch, result.batch, result.dropped),)
    return parts, result.metrics


def _move(worker: RoleWorker, work: Work) -> Outcome:
    worker.move(work.firing.instruction.kind)
    return (), {}


def _sources(work: Work) -> list[Source]:
    return [
        Source(bound.slot, bound.field, tuple(part.handle for part in bound.record.parts), bound.by_prompt)
        for bound in work.inputs
    ]


def _require_one_rank(stage: StagePlan, setups: Sequence[RoleSetup]) -> None:
    wide = [setup for setup in setups if setup.layout.devices > 1]
    if not wide:
        return
    raise FlowError(
        diagnose(
            "FR0901",
            stage.graph.role(setup.role).span,
            role=setup.role,
            ranks=setup.layout.devices,
            layout=", ".join(f"{axis} {size}" for axis in _AXES if (size := getattr(setup.layout, axis)) > 1),
            pool=setup.pool,
        )
        for setup in wide
    )
