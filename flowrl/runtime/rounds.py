"""Rounds of refill, as far as the driver has to know: which firings are one more round of a step, and when it is over.

Takes a stage, and whoever decides whether enough is left; gives firings to start. The first round of a step is the
program's own. While it leaves too little, the filters that end it stay uncompleted in the eyes of the stage's executor,
and an executor of the same kind runs the program of one more round (program/rounds.py). Pure: no rows, no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec import structs

from flowrl.diag.diagnostic import InternalError
from flowrl.execution.contract import Firing
from flowrl.execution.executor import Executor
from flowrl.graph.rows import rows_of
from flowrl.plan.plan import StagePlan
from flowrl.program.program import Instruction, InstructionKind
from flowrl.program.rounds import last_ops, round_program

IsIdle = Callable[[Instruction, int], bool]
IsEnough = Callable[[int, int], bool]
"""Whether so many rounds of a step have left enough; 0: where its filters are idle. Raises FlowError where no further
round may be."""


class Rounds:
    """Of one stage: one step after the other, as a step's data waits for the rounds of the one before."""

    def __init__(self, stage: StagePlan, is_idle: IsIdle, is_enough: IsEnough) -> None:
        own, ends = rows_of(stage.graph).round, last_ops(stage.graph)
        runs = [i for i in stage.programs.instructions if i.op in own and i.kind is InstructionKind.RUN]
        self._is_idle, self._is_enough = is_idle, is_enough
        self._program = round_program(stage.programs, own)
        self._written = {i.id: i for i in stage.programs.instructions}
        self._first = frozenset(i.id for i in runs)
        self._ends = frozenset(i.id for i in runs if i.op in ends)
        self._step = self._round = 0
        self._done: set[str] = set()
        """Of the first round."""
        self._held: list[Firing] = []
        """Ends of the round, which the stage's executor waits for."""
        self._executor: Executor | None = None
        """Of a further round."""

    def ready(self) -> list[Firing]:
        """Firings of a further round that may start now."""
        return [] if self._executor is None else [self._outer(each) for each in self._executor.ready()]

    def lacking(self) -> Iterator[tuple[Firing, list[str]]]:
        """As Executor.lacking, of a further round."""
        for firing, channels in () if self._executor is None else self._executor.lacking():
            yield self._outer(firing), channels

    def start(self, firing: Firing) -> bool:
        """Take note that a firing starts; false if it belongs to the stage's executor."""
        if self._executor is None or not self._is_inner(firing):
            return False
        self._executor.start(self._inner(firing))
        return True

    def complete(self, firing: Firing) -> list[Firing]:
        """Take note that a firing has completed: what the stage's executor is to be told of."""
        id = firing.instruction.id
        if self._executor is not None and self._is_inner(firing):
            self._executor.complete(self._inner(firing))
            return self._close() if self._executor.done else []
        if id not in self._first:
            return [firing]
        self._step, self._round = firing.step, 1
        self._done.add(id)
        held = id in self._ends and not firing.idle
        self._held += [firing] if held else []
        over = self._close() if self._done == self._first else []
        return over if held else [firing, *over]

    def _close(self) -> list[Firing]:
        """A round is over: what it has held back if that is the last one, else nothing and one more."""
        if self._is_enough(self._step, self._round if self._held else 0):
            held, self._held, self._executor = self._held, [], None
            self._done.clear()
            return held
        self._round += 1
        self._executor = Executor(self._program, 1)
        return []

    def _is_inner(self, firing: Firing) -> bool:
        inner = any(i.id == firing.instruction.id for i in self._program.instructions)
        return inner and firing.step == self._step

    def _inner(self, firing: Firing) -> Firing:
        for each in self._program.instructions:
            if each.id == firing.instruction.id:
                return Firing(instruction=each, step=1)
        raise InternalError(f"`{firing.instruction.id}` is in no round")

    def _outer(self, firing: Firing) -> Firing:
        written = self._written[firing.instruction.id]
        return structs.replace(firing, instruction=written, step=self._step, idle=self._is_idle(written, self._step))
