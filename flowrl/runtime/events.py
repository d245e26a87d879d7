"""Loggers: the numbers of each step to TensorBoard files. Knows one stage at a time."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Protocol

from flowrl.diag.diagnostic import FlowError, diagnose
from flowrl.plan.plan import StagePlan
from flowrl.runtime.steps import StepReport

LOGGERS = ("tensorboard",)


class Logger(Protocol):
    def step(self, report: StepReport) -> None: ...

    def close(self) -> None: ...


def loggers_of(stage: StagePlan, run_folder: Path, first_step: int) -> tuple[Logger, ...]:
    """The stage's loggers. Raises FlowError FR0801 for one that is not built, FR0913 without its package."""
    unknown = [name for name in stage.run.loggers if name not in LOGGERS]
    if unknown:
        known = ", ".join(f"`{name}`" for name in LOGGERS)
        raise FlowError(diagnose("FR0801", what=f"the logger `{unknown[0]}`", known=known))
    return tuple(TensorBoard(run_folder / "tensorboard" / stage.name, first_step) for _ in set(stage.run.loggers))


class TensorBoard:
    """Event files of one stage. TensorBoard itself drops what an earlier, longer attempt wrote from `first_step` on."""

    def __init__(self, folder: Path, first_step: int) -> None:
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError as missing:
            what = "`loggers: [tensorboard]`"
            raise FlowError(diagnose("FR0913", what=what, package="tensorboard", extra="fsdp")) from missing
        self._event: Any = event_pb2
        self._summary: Any = summary_pb2
        self._writer: Any = EventFileWriter(str(folder))
        if first_step > 1:
            start = self._event.SessionLog(status=self._event.SessionLog.START)
            self._writer.add_event(self._event.Event(wall_time=time.time(), step=first_step, session_log=start))

    def step(self, report: StepReport) -> None:
        numbers = report.metrics | {
            "seconds": report.seconds,
            "tokens_per_second": report.tokens_per_second,
            "samples_per_second": report.samples_per_second,
        }
        numbers |= {"ranks_lost": float(report.lost)} if report.lost else {}
        scalars = [
            self._summary.Summary.Value(tag=_tag(name), simple_value=value) for name, value in sorted(numbers.items())
        ]
        summary = self._summary.Summary(value=scalars)
        self._writer.add_event(self._event.Event(wall_time=time.time(), step=report.step, summary=summary))

    def close(self) -> None:
        self._writer.flush()
        self._writer.close()


def _tag(name: str) -> str:
    """`actor_train.loss` → `actor_train/loss`: TensorBoard folds tags by their first part."""
    return name.replace(".", "/", 1)
