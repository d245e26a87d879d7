"""The checker: proves a program well-formed and free of deadlock before anything reads it.

What it refuses is our fault, never the user's, so it raises InternalError with every problem found. The proof of
liveness executes one step symbolically: lanes and channels form a marked graph, in which starting one instruction never
disables another, so one order of execution stands for all; and a step that every instruction has completed leaves each
channel as it was, so what can run once can run for ever (Commoner, Holt, Even & Pnueli 1971). The members of an
interaction start together, as one transition of that graph; they stand in different lanes, or could never do so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from flowrl.diag.diagnostic import InternalError
from flowrl.program.program import MOVES, ChannelKind, Instruction, InstructionKind, Program, works_whenever
from flowrl.program.sessions import session_problems


def check(program: Program) -> None:
    """Raise InternalError unless the program is well-formed and can run for ever.

    Checked: ids are unique; both ends of each channel exist and name it, once; tokens fit in capacities; weights are
    sent by what is received; each working reader has a working source; the members of an interaction are runs of
    different lanes that work in the same steps; an offloaded role works only while it is loaded, and an engine that
    wakes in two parts receives weights between them; a session is opened, its rows taken once and in order, and closed
    or paused around all else (sessions.py); no deadlock (the error names the circle of instructions that wait for each
    other).
    """
    problems = [*_ids(program), *_ends(program)]
    if not problems:
        problems = [*_weights(program), *_cadence(program), *_interactions(program), *_residency(program)]
        problems += session_problems(program)
    if not problems:
        problems = [*_deadlock(program)]
    if problems:
        raise InternalError("the program is not right:\n" + "\n".join(f"  {problem}" for problem in problems))


def _ids(program: Program) -> Iterator[str]:
    for what, ids in (
        ("instruction", [instruction.id for instruction in program.instructions]),
        ("channel", [channel.id for channel in program.channels]),
        ("stream of pool", [stream.pool for stream in program.streams]),
    ):
        yield from (f"{what} `{id}` is there {count} times" for id, count in Counter(ids).items() if count > 1)
    for stream in program.streams:
        yield from (f"`{i.id}` is not of pool {stream.pool}" for i in stream.instructions if i.pool != stream.pool)
        if stream.slots < 1:
            yield f"pool {stream.pool} has {stream.slots} slots"


def _ends(program: Program) -> Iterator[str]:
    """One sender and one receiver for each channel: then a step sends and receives one token on it, in balance."""
    sends = Counter((channel, i.id) for i in program.instructions for channel in i.sends)
    receives = Counter((channel, i.id) for i in program.instructions for channel in i.receives)
    known = {instruction.id for instruction in program.instructions}
    for channel in program.channels:
        if channel.kind is ChannelKind.INTERACTION:
            ends = (channel.source, channel.target)
            yield from (f"channel `{channel.id}`: there is no `{end}`" for end in ends if end not in known)
            continue
        if sends.pop((channel.id, channel.source), 0) != 1:
            yield f"channel `{channel.id}`: `{channel.source}` does not send on it once"
        if receives.pop((channel.id, channel.target), 0) != 1:
            yield f"channel `{channel.id}`: `{channel.target}` does not receive from it once"
        if channel.capacity < 1:
            yield f"channel `{channel.id}`: no room for a token"
        elif not 0 <= channel.initial_tokens <= channel.capacity:
            yield f"channel `{channel.id}`: {channel.initial_tokens} tokens in room for {channel.capacity}"
    yield from (f"`{id}` sends on `{channel}`, which does not start there" for channel, id in sends)
    yield from (f"`{id}` receives from `{channel}`, which does not end there" for channel, id in receives)


def _weights(program: Program) -> Iterator[str]:
    by_id = {instruction.id: instruction for instruction in program.instructions}
    carried: set[str] = set()
    for channel in program.channels:
        if channel.kind is not ChannelKind.WEIGHTS:
            continue
        source, target = by_id[channel.source], by_id[channel.target]
        carried |= {source.id, target.id}
        kinds = (source.kind, target.kind)
        if kinds != (InstructionKind.SEND_WEIGHTS, InstructionKind.RECEIVE_WEIGHTS):
            yield f"weights channel `{channel.id}` goes from `{source.id}` to `{target.id}`"
        elif not source.edge == channel.edge == target.edge:
            yield f"weights channel `{channel.id}` joins different edges"
    for instruction in program.instructions:
        moves_weights = instruction.kind in (InstructionKind.SEND_WEIGHTS, InstructionKind.RECEIVE_WEIGHTS)
        if moves_weights and instruction.id not in carried:
            yield f"`{instruction.id}` has no weights channel"


def _cadence(program: Program) -> Iterator[str]:
    by_id = {instruction.id: instruction for instruction in program.instructions}
    for channel in program.channels:
        source, target = by_id[channel.source], by_id[channel.target]
        if channel.kind is ChannelKind.DATA and not works_whenever(source, target):
            yield f"`{target.id}` works in steps in which its source `{source.id}` is idle"


def _interactions(program: Program) -> Iterator[str]:
    by_id = {instruction.id: instruction for instruction in program.instructions}
    lane_of = {i.id: place for place, lane in enumerate(_lanes(program)) for i in lane}
    slots = {stream.pool: stream.slots for stream in program.streams}
    for members in dict.fromkeys(program.together.values()):
        own = [by_id[id] for id in members]
        names = ", ".join(f"`{id}`" for id in members)
        if any(i.kind not in (InstructionKind.RUN, InstructionKind.OPEN) for i in own):
            yield f"an interaction of {names}: not all of them run an op"
        if len({lane_of[id] for id in members}) < len(members):
            yield f"{names} start together and stand in one lane"
        if len({(i.every_steps, i.start_step, i.epilogue) for i in own}) > 1:
            yield f"{names} start together and work in different steps"
        taken = Counter(instruction.pool for instruction in own)
        yield from (
            f"{names}: {n} slots of pool {p} wanted, {slots[p]} there" for p, n in taken.items() if n > slots[p]
        )


def _lanes(program: Program) -> list[list[Instruction]]:
    return [list(lane) for stream in program.streams for lane in stream.lanes]


def _residency(program: Program) -> Iterator[str]:
    for stream in program.streams:
        moved = dict.fromkeys(i.role for i in stream.instructions if i.kind in MOVES)
        for role in moved:
            yield from _role_residency([i for i in stream.instructions if i.role == role])


def _role_residency(own: Sequence[Instruction]) -> Iterator[str]:
    """The instructions of a role that moves: off the devices, then its weights alone or all of it, then off again."""
    brought: list[Instruction] = []
    """What has brought it, part by part; it is all there after a load, or with its cache."""
    for instruction in own:
        yield from _misplaced(instruction, brought)
        if instruction.kind is InstructionKind.OFFLOAD:
            brought = []
        elif instruction.kind in MOVES:
            brought.append(instruction)
    if brought:
        yield f"`{brought[0].id}` has no offload"


def _misplaced(instruction: Instruction, brought: Sequence[Instruction]) -> Iterator[str]:
    kind, kinds = instruction.kind, [each.kind for each in brought]
    if kind in (InstructionKind.LOAD, InstructionKind.WAKE_WEIGHTS):
        yield from [f"`{instruction.id}` loads a role that is loaded"] if brought else []
        return
    if not brought:
        yield f"`{instruction.id}` works on a role that is not loaded"
        return
    whole = kinds[0] is InstructionKind.LOAD or InstructionKind.WAKE_CACHE in kinds
    if kind is InstructionKind.WAKE_CACHE and whole:
        yield f"`{instruction.id}` wakes a cache that is there"
    if kind is InstructionKind.RECEIVE_WEIGHTS and InstructionKind.WAKE_CACHE in kinds:
        yield f"`{instruction.id}` receives weights beside a cache that is awake already"
    if kind not in (*MOVES, InstructionKind.RECEIVE_WEIGHTS) and not whole:
        yield f"`{instruction.id}` works on a role whose cache is not awake"
    if kind is not InstructionKind.SAVE:
        late = (each for each in brought if not works_whenever(each, instruction))
        yield from (f"`{instruction.id}` works in steps in which `{each.id}` does not" for each in late)


def is_live(program: Program) -> bool:
    """Whether a program that is well-formed can run for ever."""
    return next(_deadlock(program), None) is None


def _deadlock(program: Program) -> Iterator[str]:
    """Run one step; if it gets stuck, follow who waits for whom until an instruction comes up again."""
    state = _State(program)
    while fired := [lane for lane in state.lanes if lane and state.may_start(lane[0])]:
        for lane in fired:
            if lane and state.may_start(lane[0]):  # a member may have been started with its partner already
                state.start(lane[0])
    stuck = [lane for lane in state.lanes if lane]
    if stuck:
        yield "deadlock: " + "; ".join(_circle(stuck, state))


class _State:
    """What is left of one step's instructions, and the tokens on the channels."""

    def __init__(self, program: Program) -> None:
        self.channels = {channel.id: channel for channel in program.channels}
        self.tokens = {channel.id: channel.initial_tokens for channel in program.channels}
        self.lanes = _lanes(program)
        self.lane_of = {instruction.id: lane for lane in self.lanes for instruction in lane}
        self.together = program.together

    def blocked(self, head: Instruction) -> str | None:
        """The first channel that keeps an instruction from starting."""
        empty = (id for id in head.receives if self.tokens[id] == 0)
        full = (id for id in head.sends if self.tokens[id] >= self.channels[id].capacity)
        return next(empty, None) or next(full, None)

    def late(self, head: Instruction) -> str | None:
        """The first member of its interaction that cannot start."""
        members = self.together.get(head.id, ())
        return next((id for id in members if self.lane_of[id][0].id != id or self.blocked(self.lane_of[id][0])), None)

    def may_start(self, head: Instruction) -> bool:
        return self.blocked(head) is None and self.late(head) is None

    def start(self, head: Instruction) -> None:
        """The instruction and all that start with it: begun and completed at once."""
        for id in self.together.get(head.id, (head.id,)):
            instruction = self.lane_of[id].pop(0)
            for channel in instruction.receives:
                self.tokens[channel] -= 1
            for channel in instruction.sends:
                self.tokens[channel] += 1


def _circle(stuck: list[list[Instruction]], state: _State) -> list[str]:
    path: list[str] = []
    lines: list[str] = []
    head = stuck[0][0]
    while head.id not in path:
        path.append(head.id)
        waited, need = _waits(head, state)
        line = f"`{head.id}` waits for {need} `{waited}`"
        head = state.lane_of[waited][0]
        lines.append(line if head.id == waited else f"{line}, which stands behind `{head.id}`")
    return lines[path.index(head.id) :]


def _waits(head: Instruction, state: _State) -> tuple[str, str]:
    """For which instruction, and for what of it."""
    blocking = state.blocked(head)
    if blocking is None:
        return state.late(head) or head.id, "its interaction with"
    channel = state.channels[blocking]
    if state.tokens[blocking] == 0:
        return channel.source, f"a token on `{blocking}` from"
    return channel.target, f"room on `{blocking}` from"
