"""What a run shows while it goes on: a bar on a terminal, one line a step elsewhere.

Writes to stderr; decides nothing.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import Protocol, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from flowrl.plan.plan import StagePlan
from flowrl.runtime.metrics import TIMING
from flowrl.runtime.recovery import Loss
from flowrl.runtime.rewards import reward_metric, reward_roles
from flowrl.runtime.steps import StepReport

PACE_STEPS = 20
"""Steps whose mean pace gives the time left."""


class ProgressView(Protocol):
    def stage(self, stage: StagePlan, step: int) -> None:
        """A stage begins, after `step` steps."""
        ...

    def step(self, report: StepReport) -> None: ...

    def lost(self, loss: Loss) -> None:
        """A rank was lost and is there again."""
        ...

    def close(self) -> None: ...


def progress_view(wanted: bool | None, stream: TextIO | None = None) -> ProgressView:
    """`wanted`: None: a bar on a terminal, else lines; True: the same; False: nothing."""
    out = stream or sys.stderr
    if wanted is False:
        return Silent()
    return Bar(out) if out.isatty() else Lines(out)


class Silent:
    def stage(self, stage: StagePlan, step: int) -> None:
        return

    def step(self, report: StepReport) -> None:
        return

    def lost(self, loss: Loss) -> None:
        return

    def close(self) -> None:
        return


class _Pace:
    """How a stage stands: its steps, the mean pace of the last ones, what its reward is called."""

    def __init__(self, stage: StagePlan) -> None:
        self.name = stage.name
        self.steps = stage.run.steps
        self._roles = reward_roles(stage.graph)
        self._seconds: deque[float] = deque(maxlen=PACE_STEPS)

    def tell(self, report: StepReport) -> str:
        """`reward 0.41 · val 0.52 · 3,240 tokens/s · left 1 min 40 s`"""
        self._seconds.append(report.seconds)
        parts = [*self._rewards(report)]
        if report.tokens:
            parts.append(f"{report.tokens_per_second:,.0f} tokens/s")
        elif report.samples:
            parts.append(f"{report.samples_per_second:,.0f} samples/s")
        left = max(self.steps - report.step, 0) * sum(self._seconds) / len(self._seconds)
        return " · ".join([*parts, f"{report.seconds:.1f} s", f"left {duration(left)}"])

    def _rewards(self, report: StepReport) -> list[str]:
        metrics = report.metrics
        training = reward_metric([name for name in metrics if "@" not in name], self._roles)
        parts = [] if training is None else [f"reward {metrics[training]:.3f}"]
        labelled = [n for n in sorted(metrics) if "@" in n and n.split("@")[0] in {f"{r}.rewards" for r in self._roles}]
        parts += [f"{name.split('@')[1]} {metrics[name]:.3f}" for name in labelled]
        losses = [f"loss {metrics[name]:.4f}" for name in sorted(metrics) if name.endswith(".loss")]
        return parts or losses[:1]


class Lines:
    """One line a step."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._pace: _Pace | None = None

    def stage(self, stage: StagePlan, step: int) -> None:
        self._pace = _Pace(stage)

    def step(self, report: StepReport) -> None:
        if self._pace is None or (report.epilogue and not _shown(report)):
            return
        place = "end" if report.epilogue else f"step {report.step}/{self._pace.steps}"
        print(f"{self._pace.name}  {place}  {self._pace.tell(report)}", file=self._out, flush=True)

    def lost(self, loss: Loss) -> None:
        print(f"{loss.stage}  {told_loss(loss)}", file=self._out, flush=True)

    def close(self) -> None:
        return


class Bar:
    """A bar for each stage; the finished ones stay."""

    def __init__(self, out: TextIO) -> None:
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[told]}"),
            console=Console(file=out),
        )
        self._bars.start()
        self._pace: _Pace | None = None
        self._task: TaskID | None = None

    def stage(self, stage: StagePlan, step: int) -> None:
        self._pace = _Pace(stage)
        self._task = self._bars.add_task(stage.name, total=stage.run.steps, completed=step, told="")

    def step(self, report: StepReport) -> None:
        if self._pace is None or self._task is None:
            return
        done = min(report.step, self._pace.steps)
        self._bars.update(self._task, completed=done, told=self._pace.tell(report))

    def lost(self, loss: Loss) -> None:
        self._bars.console.print(f"{loss.stage}  {told_loss(loss)}", markup=False, highlight=False)
        if self._task is not None and loss.rolled_back_to is not None:
            self._bars.update(self._task, completed=loss.rolled_back_to)

    def close(self) -> None:
        self._bars.stop()


def told_loss(loss: Loss) -> str:
    """What was lost and what was done about it, in a line."""
    rank = "" if loss.rank is None else f", rank {loss.rank},"
    if loss.rolled_back_to is None:
        then = f"{loss.again} firing{'' if loss.again == 1 else 's'} submitted again"
    elif loss.rolled_back_to == 0:
        then = "on from the start of the stage"
    else:
        then = f"on from the checkpoint of step {loss.rolled_back_to}"
    what = f"`{loss.role}`{rank} was lost at `{loss.doing}`"
    return f"step {loss.step}: {what}; made anew in {loss.seconds:.1f} s, {then}"


def duration(seconds: float) -> str:
    """`48 s`, `1 min 40 s`, `2 h 05 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _shown(report: StepReport) -> bool:
    return any(name not in TIMING for name in report.metrics)
