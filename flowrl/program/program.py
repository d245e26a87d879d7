"""One instruction stream per pool, joined by channels. What the simulator and the runtime both execute.

A stream is run in its fixed order, once a step. An instruction starts when it is at the head of its lane, every channel
it receives from holds a token, and every channel it sends to has room. Instructions that interaction channels tie
together start together, each at the head of its lane: a generator and its environment are live at once.

A token stands for a reference to rows (data), a weight version, or mere order. A stream of one slot is one lane: one
instruction at a time. A stream with `slots` > 1 (the host pool) has one lane for each role: each role keeps its own
order and runs one instruction at a time, roles overtake each other, and at most `slots` instructions are in flight. So
a data set's next rows need not wait for this step's reward.
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
    WAKE_WEIGHTS = "wake_weights"
    """The first half of waking an engine: its weights, so that new ones can be received into them."""
    WAKE_CACHE = "wake_cache"
    """The second half: the KV cache, once the new weights are in."""
    SEND_WEIGHTS = "send_weights"
    """Publish the role's weights on an edge, as the next version."""
    RECEIVE_WEIGHTS = "receive_weights"
    """Take the edge's next version into the role: paused, updated in place, caches reset."""
    SAVE = "save"
    """Write the role's checkpoint."""
    OPEN = "open"
    """Begin a session of an op whose rows are handed on in parts: it works on all rows of the step from here on."""
    TAKE = "take"
    """Hand on the session's rows [start, stop) in the order in which they are done, as soon as these are. Rows are
    samples (as many as so many prompts have), or whole prompts where a reader of the parts works on groups."""
    PAUSE = "pause"
    """Halt the session between two tokens; what has been made is kept."""
    RESUME = "resume"
    """Go on with the session, under the weights that the role holds now. Without a session it does nothing."""
    CLOSE = "close"
    """End the session: every row has been taken."""


MOVES = (
    InstructionKind.LOAD,
    InstructionKind.OFFLOAD,
    InstructionKind.WAKE_WEIGHTS,
    InstructionKind.WAKE_CACHE,
)
"""What brings a role's state to its devices and takes it away."""

SESSION = (
    InstructionKind.OPEN,
    InstructionKind.TAKE,
    InstructionKind.PAUSE,
    InstructionKind.RESUME,
    InstructionKind.CLOSE,
)
"""An op that is live over several instructions, between which others take what it has made so far."""


class ChannelKind(StrEnum):
    DATA = "data"
    WEIGHTS = "weights"
    ORDER = "order"
    INTERACTION = "interaction"
    """Carries no tokens: its ends start together. Messages pass between them while they run."""


class Rows(msgspec.Struct, frozen=True, kw_only=True):
    """Rows [start, stop) of the step, counted in prompts; every sample of a prompt goes with it. stop None: all."""

    start: int = 0
    stop: int | None = None
    arrived: bool = False
    """Of an update: whether rows are counted as their session has handed them on, as many as so many prompts have, and
    not by their ids."""


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
    For `save`: s % every_steps == 0, and always in the last step. An idle `send_weights` repeats its last version, an
    idle `receive_weights` drops the version that it takes, and receiving one that is already there changes nothing."""
    start_step: int = 0
    """It does its work only in steps > start_step."""
    epilogue: bool = False
    """Whether it also works in the epilogue, the partial step after the last one: the last weights are received and
    validation runs once more."""


def is_idle(instruction: Instruction, step: int, steps: int) -> bool:
    """Whether the instruction only passes its tokens on in `step` of a run of so many `steps`."""
    if step <= instruction.start_step:
        return True
    if step > steps:
        return not instruction.epilogue
    if instruction.kind is InstructionKind.SAVE:
        return step % instruction.every_steps != 0 and step != steps
    return (step - 1) % instruction.every_steps != 0


def works_whenever(source: Instruction, target: Instruction) -> bool:
    """Whether `source` works in every step in which `target` does."""
    return (
        target.every_steps % source.every_steps == 0
        and target.start_step >= source.start_step
        and (source.epilogue or not target.epilogue)
    )


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

    @property
    def lanes(self) -> tuple[tuple[Instruction, ...], ...]:
        """Instructions that run in a fixed order, one at a time: the whole stream, or each role's share of it."""
        if self.slots == 1:
            return (self.instructions,)
        by_role: dict[str, list[Instruction]] = {}
        for instruction in self.instructions:
            by_role.setdefault(instruction.role, []).append(instruction)
        return tuple(tuple(lane) for lane in by_role.values())


class Program(msgspec.Struct, frozen=True, kw_only=True):
    streams: tuple[Stream, ...]
    channels: tuple[Channel, ...]

    @property
    def instructions(self) -> tuple[Instruction, ...]:
        """All instructions, stream after stream."""
        return tuple(instruction for stream in self.streams for instruction in stream.instructions)

    @property
    def together(self) -> dict[str, tuple[str, ...]]:
        """The members of its interaction, itself among them, by instruction id: for those that have one."""
        groups: dict[str, tuple[str, ...]] = {}
        for channel in self.channels:
            if channel.kind is ChannelKind.INTERACTION:
                ends = (channel.source, channel.target)
                members = tuple(dict.fromkeys(id for end in ends for id in groups.get(end, (end,))))
                groups |= dict.fromkeys(members, members)
        return groups
