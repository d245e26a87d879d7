"""One instruction stream per pool, joined by channels. What the simulator and the runtime both execute.

A stream is run in its fixed order, once a step. An instruction starts when it is at the head of its stream (a stream
with `slots` > 1 may have that many in flight, started in order), every channel it receives from holds a token, and
every channel it sends to has room. A token stands for a reference to rows (data), a weight version, or mere order.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class InstructionKind(StrEnum):
    RUN = "run"
    """Run an op on rows."""
    LOAD = "load"
    """Bring a role's state onto the pool's devices (wake an engine)."""
    OFFLOAD = "offload"
    """Take a role's state off the pool's devices (sleep an engine)."""
    SEND_WEIGHTS = "send_weights"
    """Publish the role's weights on an edge, as the next version."""
    RECEIVE_WEIGHTS = "receive_weights"
    """Take the edge's next version into the role: paused, updated in place, caches reset."""
    SAVE = "save"
    """Write the role's checkpoint."""


class ChannelKind(StrEnum):
    DATA = "data"
    WEIGHTS = "weights"
    ORDER = "order"


class Rows(msgspec.Struct, frozen=True, kw_only=True):
    """Rows [start, stop) of the step, counted in prompts; every sample of a prompt goes with it. stop None: all."""

    start: int = 0
    stop: int | None = None


class Instruction(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    """`run actor_train.update 2/4`, `send_weights actor_train => actor_infer`, …; unique in the program, stable."""
    kind: InstructionKind
    pool: str
    role: str
    op: str | None = None
    edge: str | None = None
    firing: int = 0
    firings: int = 1
    rows: Rows = Rows()
    receives: tuple[str, ...] = ()
    """Channel ids."""
    sends: tuple[str, ...] = ()
    every_steps: int = 1
    """It does its work in steps s (from 1) with (s - 1) % every_steps == 0; in others it passes tokens on, idle.
    For `save`: s % every_steps == 0."""
    start_step: int = 0
    """It does its work only in steps > start_step."""
    epilogue: bool = False
    """Whether it also works in the epilogue, the partial step after the last one: the last weights are received and
    validation runs once more."""


class Channel(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    kind: ChannelKind
    source: str
    """Instruction id."""
    target: str
    fields: tuple[str, ...] = ()
    capacity: int = 1
    initial_tokens: int = 0
    edge: str | None = None
    """Id of the graph edge it carries out."""


class Stream(msgspec.Struct, frozen=True, kw_only=True):
    pool: str
    instructions: tuple[Instruction, ...]
    slots: int = 1


class Program(msgspec.Struct, frozen=True, kw_only=True):
    streams: tuple[Stream, ...]
    channels: tuple[Channel, ...]
