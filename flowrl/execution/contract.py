"""What the two clocks share: firings, and the executor's three verbs. See executor.py for the state machine."""

from __future__ import annotations

from typing import Protocol

import msgspec

from flowrl.program.program import Instruction


class Firing(msgspec.Struct, frozen=True, kw_only=True):
    """One execution of an instruction in one step. Steps count from 1; step N + 1 is the epilogue."""

    instruction: Instruction
    step: int
    idle: bool = False
    """Whether it only passes its tokens on (see Instruction.every_steps, start_step, epilogue)."""


class ExecutorProtocol(Protocol):
    """Pure state: no clock, no data, no threads. Drivers ask `ready`, start what it names, and report `complete`."""

    @property
    def done(self) -> bool: ...

    def ready(self) -> tuple[Firing, ...]:
        """Firings that may start now, all of them together, in a deterministic order. Starting one takes its input
        tokens, which may make room for another: a driver asks again until nothing is ready."""
        ...

    def start(self, firing: Firing) -> None: ...

    def complete(self, firing: Firing) -> None: ...

    def waiting(self) -> tuple[str, ...]:
        """For a stall: one line per stream, naming the instruction at its head and the channels it waits on."""
        ...
