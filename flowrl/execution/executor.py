"""The executor: the pure state machine that both clocks drive.

Takes a checked Program and a number of steps; says which firings may start, and is told what started and what
completed. It knows no time, no data and no threads, and the same calls always give the same answers.

The members of an interaction are ready together or not at all: each at the head of its lane, in the same step, with its
tokens, its room and a slot. Each completes on its own.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from flowrl.diag.diagnostic import InternalError
from flowrl.execution.contract import Firing
from flowrl.program.program import Instruction, Program, Stream, is_idle


@dataclass(slots=True)
class _Lane:
    """Instructions that run in a fixed order, one at a time."""

    instructions: tuple[Instruction, ...]
    place: tuple[int, int]
    """Of its stream and of itself in it."""
    step: int
    index: int = 0
    running: Firing | None = None
    queued: tuple[int, int] | None = None
    """Its entry among the lanes of its stream that may start."""

    @property
    def head(self) -> Instruction:
        return self.instructions[self.index]

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(instruction.id for instruction in self.instructions)

    def advance(self) -> None:
        self.running = None
        self.index += 1
        if self.index == len(self.instructions):
            self.index, self.step = 0, self.step + 1


@dataclass(slots=True)
class _StreamState:
    stream: Stream
    lanes: tuple[_Lane, ...]
    running: int = 0

    @property
    def free_slots(self) -> int:
        return self.stream.slots - self.running


class Executor:
    """Steps `first_step` … `steps`, then the epilogue if any instruction works in it.

    A resumed executor (`first_step` > 1) starts with the initial tokens on its channels, as a fresh one does: at a
    step's border every channel holds exactly these.
    """

    def __init__(self, program: Program, steps: int, first_step: int = 1) -> None:
        if not 1 <= first_step <= steps + 1:
            raise InternalError(f"first step {first_step} is not in 1 … {steps + 1}")
        self.steps = steps
        self.last_step = steps + any(instruction.epilogue for instruction in program.instructions)
        """The last step that has firings: `steps`, or the epilogue after it."""
        self._channels = {channel.id: channel for channel in program.channels}
        self._tokens = {channel.id: channel.initial_tokens for channel in program.channels}
        self._taken = dict.fromkeys(self._channels, 0)
        """Room that a running firing has reserved for the token it will send."""
        self._streams = tuple(
            _StreamState(
                stream,
                tuple(_Lane(lane, (number, place), first_step) for place, lane in enumerate(stream.lanes) if lane),
            )
            for number, stream in enumerate(program.streams)
        )
        self._lane_of = {
            instruction.id: lane for state in self._streams for lane in state.lanes for instruction in lane.instructions
        }
        self._state_of = {id: state for state in self._streams for lane in state.lanes for id in lane.ids}
        self._together = program.together
        self._owed: set[tuple[str, int]] = set()
        """Members of an interaction that has begun, by id and step, which have not been started yet."""
        lanes = [lane for state in self._streams for lane in state.lanes]
        self._unfinished = sum(lane.step <= self.last_step for lane in lanes)
        self._awake = {lane.place: lane for lane in lanes}
        """Lanes that something has happened to since they were last looked at."""
        self._queues: tuple[list[tuple[int, int]], ...] = tuple([] for _ in self._streams)
        """Of each stream the lanes that may start but for slots, as (step, place), in order."""
        self._lane_at = {(state.stream.pool, lane.place[1]): lane for state in self._streams for lane in state.lanes}

    @property
    def done(self) -> bool:
        return self._unfinished == 0

    @property
    def completed_step(self) -> int:
        """The last step of which every firing has completed; `first_step` - 1 before the first one has."""
        return min((lane.step for lane in self._lane_of.values()), default=self.last_step + 1) - 1

    def tokens(self, channel: str) -> int:
        """Tokens that lie on a channel now."""
        return self._tokens[channel]

    def is_idle(self, instruction: Instruction, step: int) -> bool:
        """Whether the instruction's firing in `step` only passes its tokens on."""
        return is_idle(instruction, step, self.steps)

    def ready(self) -> tuple[Firing, ...]:
        """Firings that may start now, all of them together: by stream, the earliest step first."""
        free = {state.stream.pool: state.free_slots for state in self._streams}
        found: dict[str, Firing] = {}
        for lane in self._startable(free):
            wanted = self._members(lane)
            taken = Counter(self._pool_of(other) for other in wanted)
            if lane.head.id in found or any(free[pool] < count for pool, count in taken.items()):
                continue
            free.update({pool: free[pool] - count for pool, count in taken.items()})
            found |= {other.head.id: self._next_of(other) for other in wanted}
        return tuple(sorted(found.values(), key=self._turn))

    def _turn(self, firing: Firing) -> tuple[int, int, int]:
        stream, lane = self._lane_of[firing.instruction.id].place
        return stream, firing.step, lane

    def _startable(self, free: Mapping[str, int]) -> Iterator[_Lane]:
        """Lanes that may start but for slots: by stream, the earliest step first. The rest of a stream is not looked at
        once `free`, which the caller keeps, has no slot of it."""
        for lane in self._awake.values():
            if self._may_start(lane):
                lane.queued = (lane.step, lane.place[1])
                insort(self._queues[lane.place[0]], lane.queued)
        self._awake.clear()
        for state, queue in zip(self._streams, self._queues, strict=True):
            for _, place in queue:
                if free[state.stream.pool] == 0:
                    break
                yield self._lane_at[state.stream.pool, place]

    def _wake(self, lane: _Lane) -> None:
        """Look at the lane again, and at those that wait for its head to start together with theirs."""
        for each in (lane, *(self._lane_of[id] for id in self._together.get(lane.head.id, ()))):
            self._awake[each.place] = each
            if each.queued is not None:
                self._queues[each.place[0]].remove(each.queued)
                each.queued = None

    def start(self, firing: Firing) -> None:
        lane = self._lane_of[firing.instruction.id]
        if firing != self._next_of(lane) or not self._may_start(lane) or not self._has_slot(lane):
            raise InternalError(f"step {firing.step}: `{firing.instruction.id}` may not start now")
        lane.running = firing
        self._state_of[firing.instruction.id].running += 1
        self._begin_together(firing)
        self._wake(lane)
        for channel in firing.instruction.receives:
            self._tokens[channel] -= 1
            self._wake(self._lane_of[self._channels[channel].source])
        for channel in firing.instruction.sends:
            self._taken[channel] += 1

    def complete(self, firing: Firing) -> None:
        lane = self._lane_of[firing.instruction.id]
        if lane.running != firing:
            raise InternalError(f"step {firing.step}: `{firing.instruction.id}` was not running")
        for channel in firing.instruction.sends:
            self._taken[channel] -= 1
            self._tokens[channel] += 1
            self._wake(self._lane_of[self._channels[channel].target])
        lane.advance()
        self._state_of[firing.instruction.id].running -= 1
        self._unfinished -= lane.index == 0 and lane.step == self.last_step + 1
        self._wake(lane)

    def running(self) -> tuple[Firing, ...]:
        """Firings in flight, by stream."""
        lanes = (lane for state in self._streams for lane in state.lanes)
        return tuple(lane.running for lane in lanes if lane.running is not None)

    def lacking(self) -> Iterator[tuple[Firing, list[str]]]:
        """What stands at the head of each lane that is neither running nor finished, and its channels without a token:
        of those that have one."""
        for lane in (each for state in self._streams for each in state.lanes):
            if lane.running is None and lane.step <= self.last_step and (empty := self._empty(lane)):
                yield self._next_of(lane), empty

    def waiting(self) -> tuple[str, ...]:
        """One line per lane that is neither running nor finished: what stands at its head and what it waits for."""
        return tuple(
            f"pool {state.stream.pool}, step {lane.step}: `{lane.head.id}` waits for {self._reason(lane)}"
            for state in self._streams
            for lane in state.lanes
            if lane.step <= self.last_step and lane.running is None and not self._may_start(lane)
        )

    def _begin_together(self, firing: Firing) -> None:
        """The first member that starts opens the interaction for the others."""
        key = (firing.instruction.id, firing.step)
        if key in self._owed:
            self._owed.discard(key)
            return
        others = self._together.get(firing.instruction.id, ())
        self._owed |= {(id, firing.step) for id in others if id != firing.instruction.id}

    def _has_slot(self, lane: _Lane) -> bool:
        return self._state_of[lane.head.id].free_slots > 0

    def _pool_of(self, lane: _Lane) -> str:
        return self._state_of[lane.head.id].stream.pool

    def _members(self, lane: _Lane) -> list[_Lane]:
        """The lane, and those whose heads have still to start together with its head."""
        if (lane.head.id, lane.step) in self._owed:
            return [lane]
        return [self._lane_of[id] for id in self._together.get(lane.head.id, (lane.head.id,))]

    def _next_of(self, lane: _Lane) -> Firing:
        return Firing(instruction=lane.head, step=lane.step, idle=self.is_idle(lane.head, lane.step))

    def _may_start(self, lane: _Lane) -> bool:
        return self._may_start_alone(lane) and not self._late(lane)

    def _may_start_alone(self, lane: _Lane) -> bool:
        if lane.running is not None or lane.step > self.last_step:
            return False
        tokens, taken = self._tokens, self._taken
        head = lane.head
        if any(tokens[channel] == 0 for channel in head.receives):
            return False
        return all(tokens[id] + taken[id] < self._channels[id].capacity for id in head.sends)

    def _late(self, lane: _Lane) -> list[str]:
        """Members of the head's interaction that may not start; none once it has begun."""
        if (lane.head.id, lane.step) in self._owed:
            return []
        own = self._together.get(lane.head.id, ())
        return [id for id in own if id != lane.head.id and not self._stands_ready(id, lane.step)]

    def _stands_ready(self, id: str, step: int) -> bool:
        other = self._lane_of[id]
        return other.head.id == id and other.step == step and self._may_start_alone(other)

    def _empty(self, lane: _Lane) -> list[str]:
        return [channel for channel in lane.head.receives if self._tokens[channel] == 0]

    def _full(self, lane: _Lane) -> list[str]:
        return [
            channel
            for channel in lane.head.sends
            if self._tokens[channel] + self._taken[channel] >= self._channels[channel].capacity
        ]

    def _reason(self, lane: _Lane) -> str:
        empty = [f"`{self._channels[channel].source}`" for channel in self._empty(lane)]
        full = [f"room that `{self._channels[channel].target}` makes" for channel in self._full(lane)]
        late = [f"its interaction with `{id}`" for id in self._late(lane)]
        return " and ".join(empty + full + late)
