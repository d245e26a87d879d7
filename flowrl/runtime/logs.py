"""The logs of a run: metrics.jsonl, samples.jsonl, ledger.jsonl and the stage's loggers, a step at a time.

Takes step reports; gives files. A step is in all of them before its checkpoint becomes visible.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from flowrl.runtime.events import Logger
from flowrl.runtime.jsonl import JsonLines
from flowrl.runtime.ledger import Ledger
from flowrl.runtime.steps import StepReport

METRICS, SAMPLES, LEDGER = "metrics.jsonl", "samples.jsonl", "ledger.jsonl"
FAULTS = "faults.jsonl"
"""Ranks that were lost and made anew; only where there were any. A roll-back leaves it as it is: it happened."""


class RunLogs:
    def __init__(self, run_folder: Path) -> None:
        self._metrics = JsonLines(run_folder / METRICS)
        self._samples = JsonLines(run_folder / SAMPLES)
        self._ledger = Ledger(run_folder / LEDGER)
        self.loggers: Sequence[Logger] = ()

    @property
    def ledger_digest(self) -> str:
        return self._ledger.digest

    def write(self, report: StepReport) -> None:
        """A step with nothing to say (an epilogue without validation) is left out."""
        self._ledger.add(report.ledger)
        self._samples.add(report.sample_lines)
        if report.epilogue and not report.metrics:
            return
        self._metrics.add([metrics_line(report)])
        for logger in self.loggers:
            logger.step(report)

    def sync(self) -> None:
        for log in (self._metrics, self._samples, self._ledger):
            log.sync()

    def close_loggers(self) -> None:
        loggers, self.loggers = self.loggers, ()
        for logger in loggers:
            logger.close()

    def close(self) -> None:
        self.close_loggers()
        for log in (self._metrics, self._samples, self._ledger):
            log.close()


def metrics_line(report: StepReport) -> dict[str, object]:
    """One object: stage, step, (epilogue: true after the last step), seconds, (ranks_lost: if any since the step
    before), then every metric by name. The epilogue
    of N steps is step N + 1: what the last weights come to. A metric that is not finite is null."""
    line: dict[str, object] = {"stage": report.stage, "step": report.step}
    if report.epilogue:
        line["epilogue"] = True
    line["seconds"] = round(report.seconds, 6)
    if report.lost:
        line["ranks_lost"] = report.lost
    if report.tokens:
        line["tokens_per_second"] = round(report.tokens_per_second, 3)
    if report.samples:
        line["samples_per_second"] = round(report.samples_per_second, 3)
    return line | {name: value if math.isfinite(value) else None for name, value in report.metrics.items()}
