"""The driver: the real clock over the executor. Ready → submit → poll → complete, step after step, for one stage.

It holds handles, counts and names; rows and weights stay with the launcher. What a step has come to is handed to
`on_step`, which writes the logs. The rules of stopping are here too: a run ends at a whole step, with a checkpoint.
So is what happens when a rank is lost: one without state is made anew and its firings are submitted again; for others
RollBackError asks to start again from a checkpoint.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from msgspec import structs

from flowrl.diag.diagnostic import FlowError, InternalError
from flowrl.execution.contract import Firing
from flowrl.execution.executor import Executor
from flowrl.execution.trace import TraceSpan
from flowrl.graph.state import changes_state
from flowrl.plan.plan import StagePlan
from flowrl.program.program import InstructionKind
from flowrl.runtime.checkpoint import Checkpoints, CheckpointState
from flowrl.runtime.faults import cannot_write, failure, stalled
from flowrl.runtime.faults import span_of as place_of
from flowrl.runtime.interrupts import Abandoned, Interrupts
from flowrl.runtime.launchers.contract import Completion, Launcher, LostRank, RankLostError, Work
from flowrl.runtime.recovery import Loss, Losses, RollBackError, Tracks, keeps_state
from flowrl.runtime.rounds import Rounds
from flowrl.runtime.samples import SampleLog
from flowrl.runtime.spans import span_of
from flowrl.runtime.state import StageState, StartPoint
from flowrl.runtime.steps import StepBook, StepReport
from flowrl.runtime.waits import Overdue, Policy, Waits, no_rows, whole_groups

POLL_SECONDS = 0.5
TRACE_SPANS = 100_000
"""Spans kept for trace.json, the newest; a few hundred bytes each."""


class End(StrEnum):
    FINISHED = "finished"
    LEFT = "left"
    """`on_step` asked to leave the stage."""
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class DriverSetup:
    """What a driver works with, besides the stage."""

    run_folder: Path
    launcher: Launcher
    checkpoints: Checkpoints
    interrupts: Interrupts
    on_step: Callable[[StepReport], bool]
    """Writes the logs of a whole step; true: leave the stage here."""
    seal: Callable[[], tuple[str, str]]
    """Brings the logs to the disk; gives the digests of ledger and plan that a checkpoint holds."""
    losses: Losses = field(default_factory=lambda: Losses(most=0))
    """Counts ranks that were lost, over all attempts of the run. Unless given, the first one ends the run."""
    on_loss: Callable[[Loss], None] = lambda loss: None
    """Told of ranks that were made anew."""
    stall_seconds: float = 1800.0
    began_seconds: float = 0.0
    """Start of the run on the launcher's clock."""
    clock: Callable[[], float] = time.monotonic


class Driver:
    """Runs one started stage from `start` to its end. Raises FlowError for a failure; a last checkpoint is then kept
    if no trainer has gone beyond the last whole step."""

    def __init__(self, stage: StagePlan, setup: DriverSetup, start: StartPoint) -> None:
        self._stage = stage
        self._setup = setup
        self._executor = Executor(stage.programs, stage.run.steps, start.step + 1)
        self._state = StageState(stage, self._executor.is_idle, start, setup.launcher.peek)
        self._rounds = Rounds(stage, self._executor.is_idle, self._state.is_enough)
        samples = SampleLog(stage.graph, self._state, setup.launcher.peek, stage.run.samples_logged)
        self._book = StepBook(stage.name, stage.graph, stage.run.steps, samples)
        self._changing = {op.id for op in stage.graph.ops if changes_state(op)}
        self._keepers = {role.name for role in stage.graph.roles if keeps_state(stage, role.name)}
        self._flying: dict[tuple[str, int], Work] = {}
        self._tracks = Tracks(stage)
        self._waits = Waits(stage)
        self._whole = start.step
        self._changed = start.step
        """The last step in which what a checkpoint keeps has begun to change: an update, for one."""
        self._leave = False
        self._limit: int | None = None
        """While the stage is wound down: the last step that is completed."""
        self._step_began = self._last_completion = setup.clock()
        self._last: Firing | None = None
        """The last to complete."""
        self.spans: deque[TraceSpan] = deque(maxlen=TRACE_SPANS)

    @property
    def records(self) -> int:
        """Records held now: this does not grow with the steps."""
        return len(self._state.records)

    @property
    def tracks(self) -> Tracks:
        """What roles have done that they must do again if they lose a rank."""
        return self._tracks

    @property
    def edges(self) -> tuple[str, ...]:
        """Weights edges of the stage."""
        return tuple(self._state.edges)

    @property
    def flying(self) -> tuple[Work, ...]:
        """What is under way."""
        return tuple(self._flying.values())

    def run(self) -> End:
        """Raises RollBackError where a lost rank needs a checkpoint."""
        try:
            return self._run()
        finally:
            self._setup.checkpoints.drop()

    def _run(self) -> End:
        interrupts = self._setup.interrupts
        try:
            self._carry_out(self._state.republish())
            while not self._executor.done and not self._leave and interrupts.asked is None:
                self._turn()
        except Abandoned:
            if interrupts.overdue:
                return End.INTERRUPTED
        except (FlowError, InternalError):
            self._save_what_is_whole()
            raise
        if interrupts.asked is None and not self._leave:
            return End.FINISHED
        try:
            self._wind_down()
        except Abandoned:
            return End.INTERRUPTED
        return End.LEFT if interrupts.asked is None else End.INTERRUPTED

    def _turn(self) -> None:
        """Start what may start, then take in what has completed."""
        started = False
        while firings := self._ready():  # what starts may make room for more: an idle firing completes at once
            started = True
            for firing in firings:
                if self._limit is None and (self._leave or self._setup.interrupts.asked is not None):
                    return
                self._begin(firing)
            self._collect(0.0)  # what is done already must not wait until nothing more can start
        if not started and not self._flying:
            raise InternalError("nothing runs and nothing can start: " + "; ".join(self._executor.waiting()))
        self._collect(POLL_SECONDS if self._flying else 0.0)
        self._end_waits()
        self._require_progress()

    def _collect(self, timeout_seconds: float) -> None:
        """Take in what has completed and report the steps that are whole by it. Of a role that has lost a rank, what
        completed before that is taken in first: it need not be made again."""
        done = self._setup.launcher.poll(timeout_seconds)
        lost = {each.lost.role: each for each in reversed(done) if each.lost is not None}
        for completion in (*(each for each in done if each.lost is None), *lost.values()):
            self._take_in(completion)
            self._close_steps()
        self._close_steps()

    def _ready(self) -> list[Firing]:
        found = (*self._executor.ready(), *self._rounds.ready())
        return [f for f in found if self._limit is None or f.step <= self._limit]

    def _begin(self, firing: Firing) -> None:
        if not self._rounds.start(firing):
            self._executor.start(firing)
        saves = firing.instruction.kind is InstructionKind.SAVE and not firing.idle
        work = self._state.work(firing, self._begin_save(firing.step) if saves else None)
        if work is None:
            self._complete(firing)
            return
        self._flying[firing.instruction.id, firing.step] = work
        if firing.instruction.op in self._changing:
            self._changed = max(self._changed, firing.step)
        if firing.step <= self._changed or firing.instruction.role in self._keepers:
            self._setup.launcher.submit(work)
            return
        with self._setup.interrupts.abandonable():
            self._setup.launcher.submit(work)

    def _complete(self, firing: Firing) -> None:
        for each in self._rounds.complete(firing):
            self._executor.complete(each)

    def _take_in(self, completion: Completion) -> None:
        firing, key = completion.work.firing, (completion.work.firing.instruction.id, completion.work.firing.step)
        ending = self._limit is not None or self._setup.interrupts.asked is not None
        again = completion.work.again and completion.error is not None
        if (key not in self._flying and not again) or (ending and firing.step > self._changed):
            self._flying.pop(key, None)
            return  # of a step that will not be completed: left, or failed because it was told to stop
        self._last_completion = self._setup.clock()
        if completion.lost is not None:
            self._replace(completion, completion.lost)
            return
        if completion.error is not None:
            raise failure(self._stage, completion, self._setup.run_folder)
        del self._flying[key]
        self._last = firing
        trained = self._state.completed(completion)
        self._tracks.see(completion)
        try:
            self._book.see(completion, trained)
        except Exception as error:  # the rows that samples.jsonl shows could not be had: their host is gone
            failed = replace(completion, error=error)
            told = failure(self._stage, failed, self._setup.run_folder)
            if isinstance(error, RankLostError):
                lost = replace(error.lost, role=error.lost.role or firing.instruction.role)
                raise RollBackError(self._loss(completion, lost, 0), told) from error
            raise told from error
        self.spans.append(span_of(completion, self._setup.began_seconds))
        self._complete(firing)

    def _replace(self, completion: Completion, lost: LostRank) -> None:
        """Make the ranks of a role anew, bring them to where they stood, and submit again what was lost with it. One
        that dies at its start is one more that is lost. What cannot be had again so raises RollBackError."""
        began, again = self._setup.clock(), self._tracks.begun_again(lost.role, self.flying)
        while True:
            error = self._beyond_repair(completion, lost)
            loss = self._loss(completion, lost, len(again))
            self._setup.losses.add(loss, place_of(self._stage, completion.work.firing.instruction), error)
            try:
                self._revive(lost.role)
                break
            except RankLostError as died:
                self._setup.on_loss(structs.replace(loss, again=0, seconds=self._setup.clock() - began))
                completion, began = replace(completion, error=died), self._setup.clock()
                lost = replace(died.lost, role=died.lost.role or lost.role)
            except Exception as fault:
                raise failure(self._stage, replace(completion, error=fault), self._setup.run_folder) from fault
        for work in (*self._tracks.replay(lost.role, again), *again):
            self._setup.launcher.submit(work)
        self._last_completion = self._setup.clock()
        self._setup.on_loss(structs.replace(loss, seconds=self._last_completion - began))

    def _end_waits(self) -> None:
        """Do what an edge says of a wait that has lasted too long."""
        lacking = (*self._executor.lacking(), *self._rounds.lacking())
        overdue = self._waits.overdue(self._setup.clock(), lacking, self._flying)
        if overdue is None:
            return
        if overdue.policy is Policy.ABORT:
            raise overdue.error()
        told = overdue.told if overdue.policy is Policy.RETRY else self._drop(overdue)
        lost = LostRank(overdue.work.firing.instruction.role, None, told)
        self._replace(Completion(overdue.work, error=overdue.error(), lost=lost), lost)

    def _drop(self, overdue: Overdue) -> str:
        """Take what is there of the other end's rows for all. Gives what is left out, in words."""
        work = overdue.work
        op = self._stage.graph.op(work.firing.instruction.op or "")
        parts, groups = whole_groups(op, work, self._setup.launcher.give_up(work, no_rows(op)))
        self._take_in(Completion(work, parts, {"dropped_groups": (float(groups), 1.0)}, seconds=overdue.seconds))
        return f"{overdue.told}; groups that left the step: {groups}"

    def _revive(self, role: str) -> None:
        if self._limit is not None:
            self._setup.launcher.revive(role)
            return
        with self._setup.interrupts.abandonable():
            self._setup.launcher.revive(role)

    def _loss(self, completion: Completion, lost: LostRank, again: int) -> Loss:
        at = completion.work.firing.instruction.id
        name, step = self._stage.name, self._whole + 1
        return Loss(stage=name, step=step, role=lost.role, rank=lost.rank, doing=at, reason=lost.reason, again=again)

    def _beyond_repair(self, completion: Completion, lost: LostRank) -> FlowError | InternalError:
        """What the run says if the rank may not be replaced. Raises RollBackError if it cannot be."""
        error = failure(self._stage, completion, self._setup.run_folder)
        if lost.with_host or keeps_state(self._stage, lost.role):
            raise RollBackError(self._loss(completion, lost, 0), error)
        return error

    def _close_steps(self) -> None:
        """Report every step that has become whole, then make its checkpoint visible."""
        while self._whole < min(self._executor.completed_step, self._executor.last_step):
            step = self._whole + 1
            now = self._setup.clock()
            report = self._book.report(step, now - self._step_began, self._state.fates(step))
            self._step_began = now
            try:
                self._leave = self._setup.on_step(report) or self._leave
            except OSError as error:
                raise cannot_write(self._setup.run_folder, error.strerror or str(error)) from error
            self._whole = step
            self._setup.losses.whole(self._stage.name, step)
            if self._setup.checkpoints.begun(step):
                self._finish_save(step)
            self._state.step_done(step)

    def _wind_down(self) -> None:
        """End at a whole step: complete the one in which training has begun, and no other; then save."""
        self._limit = self._changed
        while self._whole < self._limit:
            self._turn()
        self._save_now(min(self._whole, self._stage.run.steps))
        self._setup.interrupts.settled()

    def _save_what_is_whole(self) -> None:
        """After a failure: a checkpoint of the last whole step, if the trainers are still there. The failure is what
        the user must hear of, so a second one here is not told."""
        if self._changed > self._whole:
            return
        try:
            self._save_now(min(self._whole, self._stage.run.steps))
        except Exception:
            return

    def _save_now(self, step: int) -> None:
        """A checkpoint at a whole step that has none yet."""
        if step < 1 or self._setup.checkpoints.has(step):
            return
        saves = [i for i in self._stage.programs.instructions if i.kind is InstructionKind.SAVE]
        if saves:
            folder = self._begin_save(step)
            self._carry_out([self._state.save(Firing(instruction=i, step=step), folder) for i in saves])
            self._finish_save(step)

    def _carry_out(self, works: Sequence[Work]) -> None:
        """Do work that is in no step of the program, and wait for it; whatever else completes is let go."""
        waiting = {(work.firing.instruction.id, work.firing.step) for work in works}
        for work in works:
            self._setup.launcher.submit(work)
        self._last_completion = self._setup.clock()
        while waiting:
            for completion in self._setup.launcher.poll(POLL_SECONDS):
                key = (completion.work.firing.instruction.id, completion.work.firing.step)
                if key in waiting and completion.lost is not None:
                    raise self._beyond_repair(completion, completion.lost)
                if key in waiting and completion.error is not None:
                    raise failure(self._stage, completion, self._setup.run_folder)
                waiting.discard(key)
                self._last_completion = self._setup.clock()
            self._require_progress(works)

    def _begin_save(self, step: int) -> Path:
        try:
            return self._setup.checkpoints.begin(step)
        except OSError as error:
            raise cannot_write(self._setup.checkpoints.folder(step), error.strerror or str(error)) from error

    def _finish_save(self, step: int) -> None:
        try:
            ledger, plan = self._setup.seal()
            state = CheckpointState(
                stage=self._stage.name,
                step=step,
                cursors=self._state.cursors.at_end(step),
                waiting={id: edge.waiting_at_end(step) for id, edge in self._state.edges.items()},
                carried={op: one.waiting_at_end(step) for op, one in self._state.carried.items()},
                fresh=tuple(id for id, edge in self._state.edges.items() if edge.is_fresh(step)),
                ledger=ledger,
                plan=plan,
            )
            self._setup.checkpoints.finish(state)
        except OSError as error:
            raise cannot_write(self._setup.checkpoints.folder(step), error.strerror or str(error)) from error

    def _require_progress(self, works: Sequence[Work] = ()) -> None:
        seconds = self._setup.clock() - self._last_completion
        if seconds <= self._setup.stall_seconds or not (self._flying or works):
            return
        running = [work.firing.instruction for work in [*works, *self._flying.values()]]
        waiting, step = self._executor.waiting(), self._whole + 1
        raise stalled(self._stage, running, waiting, seconds, step, self._setup.run_folder, self._last)
