"""A session: the stages of a plan, one after another, in one run folder. What `run` and `resume` have in common.

Takes a plan whose `folder` is absolute, a run folder with plan.json in it, and where to start; leaves logs, checkpoints
and run.json in every case: finished, interrupted or failed.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from flowrl.diag.diagnostic import FlowError, InternalError, diagnose
from flowrl.execution.chrome import chrome
from flowrl.execution.executor import Executor
from flowrl.execution.trace import Trace, TraceSpan
from flowrl.plan.plan import Plan, StagePlan
from flowrl.runtime.agreement import require_agreement
from flowrl.runtime.checkpoint import Checkpoint, Checkpoints, newest
from flowrl.runtime.driver import Driver, DriverSetup, End
from flowrl.runtime.events import loggers_of
from flowrl.runtime.export import export_role
from flowrl.runtime.faults import cannot_write, span_of_role, with_note
from flowrl.runtime.gate import leaves_stage, require_passed
from flowrl.runtime.interrupts import Abandoned, InterruptError, Interrupts
from flowrl.runtime.jsonl import JsonLines, read_lines
from flowrl.runtime.launchers.choose import available_threads, make_launcher
from flowrl.runtime.launchers.contract import Launcher, RankLostError
from flowrl.runtime.logs import FAULTS, METRICS, RunLogs
from flowrl.runtime.progress import progress_view
from flowrl.runtime.recovery import REPLACEMENTS, Loss, Losses, RollBackError, made_anew
from flowrl.runtime.restart import cut_logs, start_of
from flowrl.runtime.runfile import PLAN, TRACE, RunFile, RunStatus, owned, write_run_file
from flowrl.runtime.setups import HOST, model_folders, trained_model_folder
from flowrl.runtime.state import StartPoint
from flowrl.runtime.steps import StepReport

MakeLauncher = Callable[[str, int], Launcher]


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """How to run, whatever the plan says."""

    progress: bool | None = None
    """None: a bar on a terminal, one line a step elsewhere; False: nothing."""
    threads: int | None = None
    """Of an inline run; None: the cores that this process may use."""
    stall_seconds: float = 1800.0
    """A run in which nothing completes for so long is ended."""
    replacements: int = REPLACEMENTS
    """Times that ranks of one role may be lost with no new whole step in between; 0: the first one ends the run."""
    make_launcher: MakeLauncher = make_launcher


def session_options(replacements: int | None = None) -> SessionOptions:
    """The defaults, but for what is given."""
    return SessionOptions() if replacements is None else SessionOptions(replacements=replacements)


class Session:
    def __init__(self, plan: Plan, run_folder: Path, file: RunFile, options: SessionOptions) -> None:
        self._plan = plan
        self._run_folder = run_folder
        self._options = options
        self._file = owned(file)
        self._interrupts = Interrupts()
        self._progress = progress_view(options.progress)
        self._plan_digest = hashlib.sha256((run_folder / PLAN).read_bytes()).hexdigest()
        self._began = time.monotonic()
        self._spans: list[TraceSpan] = []
        self._logs: RunLogs | None = None
        self._has_begun = False
        self._losses = Losses(most=options.replacements)
        self._lost_since = 0
        """Ranks that were lost since the last report of a step."""

    def run(self, first_stage: int, start: StartPoint) -> None:
        """Run the stages from `first_stage` on. Raises InterruptError after a signal, FlowError for a failure; run.json
        then says so."""
        with self._interrupts.listening(), self._recorded():
            self._logs = RunLogs(self._run_folder)
            self._set(state=RunStatus.RUNNING)
            for index in range(first_stage, len(self._plan.stages)):
                self._stage(self._plan.stages[index], start if index == first_stage else StartPoint())

    @contextmanager
    def _recorded(self) -> Iterator[None]:
        """Whatever happens inside: close what is open and write down how it ended."""
        state, code = RunStatus.FAILED, None
        try:
            yield
            state = RunStatus.FINISHED
        except Abandoned:
            state = RunStatus.INTERRUPTED
            raise self._interrupted() from None
        except InterruptError:
            state = RunStatus.INTERRUPTED
            raise
        except FlowError as error:
            if self._interrupts.asked is not None:  # what was abandoned has taken it for a failure of its own
                state = RunStatus.INTERRUPTED
                raise self._interrupted() from error
            code = error.diagnostics[0].code
            if not self._has_begun and self._newest() is None:
                raise  # what failed is the start, and there is nothing left to tell of
            raise with_note(error, self._what_is_left()) from error
        except OSError as error:
            code = "FR0905"
            raise cannot_write(Path(error.filename or self._run_folder), error.strerror or str(error)) from error
        finally:
            self._progress.close()
            with suppress(OSError):
                self._close_files()
            with suppress(OSError):
                self._set(state=state, code=code)

    def _stage(self, stage: StagePlan, start: StartPoint) -> None:
        if self._interrupts.asked is not None:
            raise Abandoned
        self._set(stage=stage.name, step=start.step)
        if not self._was_left(stage, start):
            self._drive(stage, start)
        require_passed(stage, self._lines(stage))
        self._hand_over(stage)

    def _drive(self, stage: StagePlan, start: StartPoint) -> None:
        if Executor(stage.programs, stage.run.steps, start.step + 1).done:
            return
        assert self._logs is not None
        launcher = self._options.make_launcher(self._file.launcher, self._options.threads or available_threads())
        spans: list[TraceSpan] = []
        try:
            self._logs.loggers = loggers_of(stage, self._run_folder, start.step + 1)
            self._progress.stage(stage, start.step)
            with self._interrupts.abandonable():
                model_folders(self._plan, stage, self._run_folder)
                launcher.start(self._plan, stage, self._run_folder, start.folder)
            self._has_begun = True
            end = self._attempts(stage, launcher, start, spans)
        finally:
            self._interrupts.settled()
            self._spans.extend(self._of_stage(stage, span) for span in spans)
            launcher.close()
            self._logs.close_loggers()
        if end is End.INTERRUPTED:
            raise self._interrupted()

    def _attempts(self, stage: StagePlan, launcher: Launcher, start: StartPoint, spans: list[TraceSpan]) -> End:
        """Run the stage; where it has lost what only a checkpoint has, once more from its newest one."""
        while True:
            driver = Driver(stage, self._driver_setup(stage, launcher), start)
            try:
                return driver.run()
            except RollBackError as lost:
                if self._interrupts.asked is not None:
                    raise lost.error from lost
                start = self._roll_back(stage, launcher, driver, lost)
            finally:
                spans.extend(driver.spans)

    def _roll_back(self, stage: StagePlan, launcher: Launcher, driver: Driver, lost: RollBackError) -> StartPoint:
        """Logs, ranks and weights as they were at the stage's newest checkpoint, or at its start."""
        began, checkpoint = time.monotonic(), newest(self._run_folder, [stage.name])
        start = start_of(checkpoint)
        loss = structs.replace(lost.loss, rolled_back_to=start.step)
        self._losses.add(loss, span_of_role(stage, loss.role), lost.error)
        self._reopen_logs(stage, checkpoint)
        initial = {edge for edge in driver.edges if start.waiting.get(edge, (0,))[0] == 0}
        anew = made_anew(stage, driver.tracks, driver.flying, initial)
        while True:
            try:
                with self._interrupts.abandonable():
                    launcher.rewind(start.folder, anew)
                break
            except RankLostError as again:
                self._on_loss(stage, structs.replace(loss, seconds=time.monotonic() - began))
                died, began = again.lost, time.monotonic()
                loss = structs.replace(loss, role=died.role or loss.role, rank=died.rank, reason=died.reason)
                anew |= {loss.role}
                self._losses.add(loss, span_of_role(stage, loss.role), again)
        self._on_loss(stage, structs.replace(loss, seconds=time.monotonic() - began))
        self._set(step=start.step)
        return start

    def _reopen_logs(self, stage: StagePlan, checkpoint: Checkpoint | None) -> None:
        assert self._logs is not None
        self._logs.close()
        cut_logs(self._run_folder, self._plan, stage.name, checkpoint)
        self._logs = RunLogs(self._run_folder)
        first = 1 if checkpoint is None else checkpoint.state.step + 1
        self._logs.loggers = loggers_of(stage, self._run_folder, first)

    def _on_loss(self, stage: StagePlan, loss: Loss) -> None:
        """Tell of a rank that was lost and is there again: progress, faults.jsonl, trace.json, the next step's line."""
        self._lost_since += 1
        self._progress.lost(loss)
        pool = next((pool.name for pool in stage.pools for entry in pool.roles if entry.role == loss.role), HOST)
        span = TraceSpan(
            instruction=f"replace {loss.role}",
            pool=pool,
            role=loss.role,
            step=loss.step,
            start_seconds=time.monotonic() - self._began - loss.seconds,
            seconds=loss.seconds,
        )
        self._spans.append(self._of_stage(stage, span))
        lines = JsonLines(self._run_folder / FAULTS)
        lines.add([msgspec.to_builtins(loss)])
        lines.close()

    def _driver_setup(self, stage: StagePlan, launcher: Launcher) -> DriverSetup:
        return DriverSetup(
            run_folder=self._run_folder,
            launcher=launcher,
            checkpoints=Checkpoints(self._run_folder, stage.name, stage.run.keep),
            interrupts=self._interrupts,
            on_step=lambda report: self._on_step(stage, report),
            seal=self._seal,
            losses=self._losses,
            on_loss=lambda loss: self._on_loss(stage, loss),
            stall_seconds=self._options.stall_seconds,
            began_seconds=self._began,
        )

    def _on_step(self, stage: StagePlan, report: StepReport) -> bool:
        assert self._logs is not None
        report, self._lost_since = replace(report, lost=self._lost_since), 0
        self._logs.write(report)
        self._progress.step(report)
        self._set(step=min(report.step, stage.run.steps))
        require_agreement(stage, report.metrics, report.step)
        return leaves_stage(stage, report.metrics)

    def _seal(self) -> tuple[str, str]:
        assert self._logs is not None
        self._logs.sync()
        return self._logs.ledger_digest, self._plan_digest

    def _lines(self, stage: StagePlan) -> list[dict[str, Any]]:
        return [line for line in read_lines(self._run_folder / METRICS) if line["stage"] == stage.name]

    def _was_left(self, stage: StagePlan, start: StartPoint) -> bool:
        """Whether the stage had passed its gate before the run was taken up again."""
        lines = self._lines(stage) if start.step else []
        return bool(lines) and leaves_stage(stage, lines[-1])

    def _hand_over(self, stage: StagePlan) -> None:
        """Leave the trainers that later stages start from as Hugging Face folders."""
        starts = {start.removeprefix("stages.") for later in self._plan.stages for start in later.starts_from.values()}
        for role in sorted(start.split(".", 1)[1] for start in starts if start.split(".", 1)[0] == stage.name):
            checkpoint = newest(self._run_folder, [stage.name])
            if checkpoint is None:
                raise InternalError(f"stage `{stage.name}` has left no checkpoint")
            out = trained_model_folder(self._run_folder, stage.name, role)
            export_role(self._plan, stage, self._run_folder, checkpoint.folder, role, out)

    def _of_stage(self, stage: StagePlan, span: TraceSpan) -> TraceSpan:
        """With several stages, each has pools of its own in the trace."""
        return span if len(self._plan.stages) == 1 else structs.replace(span, pool=f"{stage.name}/{span.pool}")

    def _set(self, **changes: object) -> None:
        self._file = structs.replace(self._file, **changes)
        write_run_file(self._run_folder, self._file)

    def _close_files(self) -> None:
        if self._logs is not None:
            self._logs.close()
        trace = chrome(Trace(spans=tuple(self._spans), simulated=False))
        (self._run_folder / TRACE).write_bytes(msgspec.json.encode(trace))

    def _interrupted(self) -> InterruptError:
        facts = {"step": self._file.step + 1, "stage": self._file.stage, "folder": self._run_folder}
        number = self._interrupts.asked or 2
        told = diagnose("FR0904", None, signal=self._interrupts.name, kept=self._what_is_left(), **facts)
        return InterruptError(told, number)

    def _newest(self) -> Checkpoint | None:
        return newest(self._run_folder, [stage.name for stage in self._plan.stages])

    def _what_is_left(self) -> str:
        last = self._newest()
        if last is None:
            return f"{self._run_folder} has no checkpoint yet: a resumed run starts from the beginning"
        return f"{self._run_folder} has a checkpoint of step {last.state.step} of stage `{last.state.stage}`"
