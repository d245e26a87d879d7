"""Small programs made by hand or drawn at random, and a brute-force execution of them that shares no code with ours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from flowrl.program.program import Channel, ChannelKind, Instruction, InstructionKind, Program, Stream

Link = tuple[str, str, int, int]
"""source, target, capacity, initial tokens"""


def make_program(
    streams: Sequence[Sequence[str]],
    links: Sequence[Link],
    slots: Sequence[int] | None = None,
    together: Sequence[tuple[str, str]] = (),
) -> Program:
    """Instruction `a` has role `a`; `role:a` has role `role`. Channels are c0, c1, … in the order of `links`, then i0,
    i1, … for the pairs that start `together`."""
    channels = tuple(
        Channel(id=f"c{n}", kind=ChannelKind.ORDER, source=source, target=target, capacity=room, initial_tokens=tokens)
        for n, (source, target, room, tokens) in enumerate(links)
    )
    return Program(
        streams=tuple(
            Stream(
                pool=f"p{n}",
                instructions=tuple(_instruction(id, f"p{n}", channels) for id in ids),
                slots=1 if slots is None else slots[n],
            )
            for n, ids in enumerate(streams)
        ),
        channels=(
            *channels,
            *(
                Channel(id=f"i{n}", kind=ChannelKind.INTERACTION, source=source, target=target)
                for n, (source, target) in enumerate(together)
            ),
        ),
    )


def _instruction(id: str, pool: str, channels: Sequence[Channel]) -> Instruction:
    return Instruction(
        id=id,
        kind=InstructionKind.RUN,
        pool=pool,
        role=id.split(":", 1)[0],
        op=id,
        receives=tuple(c.id for c in channels if c.target == id),
        sends=tuple(c.id for c in channels if c.source == id),
    )


@st.composite
def programs(draw: st.DrawFn, max_links: int = 6) -> Program:
    """Up to three streams of up to three instructions, with any channels between them: many of these deadlock."""
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    slots = [draw(st.integers(1, 2)) for _ in sizes]
    streams = [
        [f"{draw(st.sampled_from('rs'))}{pool}:{n}" if slots[pool] > 1 else f"{pool}.{n}" for n in range(size)]
        for pool, size in enumerate(sizes)
    ]
    names = st.sampled_from([id for ids in streams for id in ids])
    links: list[Link] = []
    for _ in range(draw(st.integers(0, max_links))):
        room = draw(st.integers(1, 2))
        links.append((draw(names), draw(names), room, draw(st.integers(0, room))))
    pairs = draw(st.lists(st.tuples(names, names), max_size=2))
    return make_program(streams, links, slots, [pair for pair in pairs if pair[0] != pair[1]])


@dataclass(frozen=True)
class State:
    """How often each instruction has started and completed: all there is to know."""

    started: tuple[int, ...]
    completed: tuple[int, ...]


class BruteForce:
    """Every interleaving of starts and completions of a program, straight from the rules in program.py."""

    def __init__(self, program: Program, steps: int) -> None:
        self.program = program
        self.steps = steps
        self.ids = [i.id for s in program.streams for i in s.instructions]
        self.begin = State((0,) * len(self.ids), (0,) * len(self.ids))
        self.pairs = [(c.source, c.target) for c in program.channels if c.kind is ChannelKind.INTERACTION]

    def may_start(self, state: State) -> list[str]:
        """What may start by itself, and whose partners may all start with it or have done so."""
        started = dict(zip(self.ids, state.started, strict=True))
        alone = self._alone(state)
        free = {s.pool: s.slots for s in self.program.streams}
        for id, a, b in zip(self.ids, state.started, state.completed, strict=True):
            free[self._pool(id)] -= a - b
        found: list[str] = []
        for id in alone:
            partners = self._partners(id)
            if any(started[other] > started[id] for other in partners):
                found.append(id)
                continue
            wanted = [self._pool(other) for other in {id, *partners}]
            if partners <= set(alone) and all(free[pool] >= wanted.count(pool) for pool in wanted):
                found.append(id)
        return found

    def _pool(self, id: str) -> str:
        return next(s.pool for s in self.program.streams if any(i.id == id for i in s.instructions))

    def _partners(self, id: str) -> set[str]:
        """Everything that the pairs tie to it, directly or not."""
        found = {id}
        while more := {b for pair in self.pairs for a, b in (pair, pair[::-1]) if a in found} - found:
            found |= more
        return found - {id}

    def _alone(self, state: State) -> list[str]:
        started = dict(zip(self.ids, state.started, strict=True))
        completed = dict(zip(self.ids, state.completed, strict=True))
        return [
            i.id
            for s in self.program.streams
            if sum(started[x.id] - completed[x.id] for x in s.instructions) < s.slots
            for i in s.instructions
            if started[i.id] < self.steps
            and self._in_turn(i, s, started, completed)
            and self._fed(i.id, started, completed)
        ]

    def _in_turn(self, i: Instruction, s: Stream, started: dict[str, int], completed: dict[str, int]) -> bool:
        mates = [x.id for x in s.instructions if s.slots == 1 or x.role == i.role]
        place = mates.index(i.id)
        round_ = started[i.id]
        earlier = all(completed[x] == round_ + 1 for x in mates[:place])
        later = all(completed[x] == round_ for x in mates[place:])
        return earlier and later

    def _fed(self, id: str, started: dict[str, int], completed: dict[str, int]) -> bool:
        for c in (c for c in self.program.channels if c.kind is not ChannelKind.INTERACTION):
            if c.target == id and c.initial_tokens + completed[c.source] - started[id] < 1:
                return False
            if c.source == id and c.initial_tokens + started[id] - started[c.target] >= c.capacity:
                return False
        return True

    def start(self, state: State, id: str) -> State:
        return State(self._plus(state.started, id), state.completed)

    def complete(self, state: State, id: str) -> State:
        return State(state.started, self._plus(state.completed, id))

    def _plus(self, counts: tuple[int, ...], id: str) -> tuple[int, ...]:
        return tuple(count + (name == id) for name, count in zip(self.ids, counts, strict=True))

    def followers(self, state: State) -> Iterator[State]:
        for id in self.may_start(state):
            yield self.start(state, id)
        for id, a, b in zip(self.ids, state.started, state.completed, strict=True):
            if a > b:
                yield self.complete(state, id)

    def gets_stuck(self) -> bool:
        """Whether any interleaving ends before every instruction has completed `steps` times."""
        seen = {self.begin}
        frontier = [self.begin]
        while frontier:
            state = frontier.pop()
            after = list(self.followers(state))
            if not after and any(count < self.steps for count in state.completed):
                return True
            frontier.extend(s for s in after if s not in seen)
            seen.update(after)
        return False
