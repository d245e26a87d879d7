"""Pairs what a plan says instructions take with what a run's trace says they took.

Takes the events of a trace and a stage; gives durations by name, one half of the steps to fit with and the other to
judge by. The first step warms caches up and counts for neither.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from flowrl.plan.plan import Plan, StagePlan

LEAST_REPEATS = 4
"""Of an instruction, so that both halves have two."""


class ChromeEvent(msgspec.Struct, frozen=True):
    """Of the trace event format, what is read here."""

    name: str = ""
    ph: str = ""
    pid: int = 0
    ts: float = 0.0
    """Start, in microseconds."""
    dur: float = 0.0
    """Microseconds."""
    args: dict[str, Any] = {}


class ChromeTrace(msgspec.Struct, frozen=True):
    """trace.json of a run, as execution/chrome.py writes it."""

    traceEvents: list[ChromeEvent] = []  # noqa: N815


@dataclass(frozen=True, slots=True)
class Event:
    """One instruction that worked."""

    stage: str
    instruction: str
    step: int
    seconds: float
    start_seconds: float = 0.0
    """Since the start of the run."""


@dataclass(frozen=True, slots=True)
class Pair:
    """An instruction with its repeats; those of one op with several firings are one."""

    stage: str
    name: str
    """`actor_train.update`, or the id of an instruction without an op."""
    instructions: tuple[str, ...]
    fitted: tuple[float, ...]
    """Seconds in the half that constants are fitted to."""
    held: tuple[float, ...]
    """Seconds in the half that they are judged by."""

    @property
    def key(self) -> str:
        return f"{self.stage}/{self.name}"

    @property
    def measured(self) -> float:
        """Median of the half that is fitted."""
        return statistics.median(self.fitted)

    @property
    def judged(self) -> float:
        """Median of the half that is held out."""
        return statistics.median(self.held)

    @property
    def p90(self) -> float:
        """Of all."""
        ordered = sorted((*self.fitted, *self.held))
        return ordered[min(len(ordered) - 1, round(0.9 * (len(ordered) - 1)))]


def events_of(plan: Plan, trace: ChromeTrace) -> tuple[Event, ...]:
    """The complete events of a trace. With several stages, a pool's name there has its stage's before it."""
    pools = {
        row.pid: str(row.args.get("name", "")).removeprefix("pool ")
        for row in trace.traceEvents
        if row.ph == "M" and row.name == "process_name"
    }
    found: list[Event] = []
    for row in trace.traceEvents:
        step = row.args.get("step")
        if row.ph == "X" and isinstance(step, int):
            several = len(plan.stages) > 1
            stage = pools.get(row.pid, "").partition("/")[0] if several else plan.stages[0].name
            found.append(Event(stage, row.name, step, row.dur / 1e6, row.ts / 1e6))
    return tuple(found)


def pairs_of(stage: StagePlan, events: Iterable[Event]) -> tuple[Pair, ...]:
    """Of the instructions that worked often enough, in the plan's order. Every other repeat is held out."""
    ops = {each.id: each.op or each.id for each in stage.programs.instructions}
    rounds: dict[tuple[str, int], float] = {}
    """By instruction and step: one that refill has run again is planned as one."""
    for event in events:
        if event.stage == stage.name and event.instruction in ops and event.step > 1:
            key = (event.instruction, event.step)
            rounds[key] = rounds.get(key, 0.0) + event.seconds
    taken: dict[str, list[tuple[int, float]]] = {}
    for (instruction, step), seconds in rounds.items():
        taken.setdefault(ops[instruction], []).append((step, seconds))
    found: list[Pair] = []
    for name in dict.fromkeys(ops.values()):
        repeats = [took for _, took in sorted(taken.get(name, []))]
        if len(repeats) >= LEAST_REPEATS:
            ids = tuple(id for id, op in ops.items() if op == name)
            found.append(Pair(stage.name, name, ids, tuple(repeats[::2]), tuple(repeats[1::2])))
    return tuple(found)
