"""What moves from step to step without being rows: weight versions on their channels, and places in data sets.

Both remember what they were at the end of each recent step, because a checkpoint of step s is written when other pools
may already be in a later one. Counts only; holds no weights and no rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from flowrl.diag.diagnostic import InternalError

REMEMBERED_STEPS = 64


@dataclass(slots=True)
class History:
    """A count by step; between steps in which it changed it stays."""

    now: int = 0
    by_step: dict[int, int] = field(default_factory=dict[int, int])
    most: int = REMEMBERED_STEPS

    def set(self, step: int, value: int) -> None:
        self.now = value
        self.by_step[step] = value
        for old in sorted(self.by_step)[: -self.most]:
            del self.by_step[old]

    def at_end(self, step: int, initial: int = 0) -> int:
        return max(((s, v) for s, v in self.by_step.items() if s <= step), default=(0, initial))[1]


class WeightEdge:
    """One weights channel: the versions that wait on it, the last one published, the one its target holds.

    Version v is the v-th that was published; version 0 is the initial weights. `waiting`: what lies on the channel
    after `step` steps, oldest first: one for each initial token, the newest being the last one published. `newest`: the
    target takes the newest version that is there instead of the next one: tokens only bound how far it is ahead.
    `count`: how many a step publishes (`every_updates`); the target takes as many and works with the last of them.
    """

    def __init__(
        self, edge: str, waiting: Sequence[int], step: int = 0, *, newest: bool = False, count: int = 1
    ) -> None:
        if not waiting:
            raise InternalError(f"the channel of `{edge}` has no initial token")
        first = step * count - len(waiting) + 1
        self.edge = edge
        self._count = count
        known = {first + place: version for place, version in enumerate(waiting)}
        self._published = History(waiting[-1], known, REMEMBERED_STEPS * count)
        """By the number of the send, from 1."""
        self._waiting = deque(waiting)
        self._tokens = len(waiting)
        self._newest = newest
        self.there = waiting[-1]
        """The newest version whose sending is over."""
        self.held = 0

    @property
    def now(self) -> int:
        """The last version published."""
        return self._published.now

    def send(self, step: int, *, idle: bool, firing: int = 0) -> int:
        """The version that the token of a step's send `firing` (from 0) stands for: a new one, or the last one again if
        it is idle."""
        version = self.now + (0 if idle else 1)
        self._waiting.append(version)
        self._published.set((step - 1) * self._count + firing + 1, version)
        return version

    def receive(self) -> int:
        """Take the oldest versions that wait, as many as a step publishes, and give the last of them; or the newest
        that is there."""
        if len(self._waiting) < self._count:
            raise InternalError(f"nothing waits on `{self.edge}`")
        version = [self._waiting.popleft() for _ in range(self._count)][-1]
        return self.there if self._newest else version

    def at_end(self, step: int) -> int:
        """The last version published up to the end of `step`."""
        return self._published.at_end(step * self._count)

    def waiting_at_end(self, step: int) -> tuple[int, ...]:
        """What lies on the channel between `step` and the next step, whoever may be ahead by now."""
        if self._newest:
            return (self.at_end(step),) * self._tokens
        last = step * self._count
        return tuple(self._published.at_end(number) for number in range(last - self._tokens + 1, last + 1))

    def is_fresh(self, step: int) -> bool:
        """Whether the last version published up to the end of `step` was published in it: then it is the weights that
        the trainer has at the step's end."""
        return self.at_end(step) != self.at_end(step - 1)


class Cursors:
    """Where each data set's next prompts start, in its endless order."""

    def __init__(self, restored: Mapping[str, int]) -> None:
        self._restored = dict(restored)
        self._by_op: dict[str, History] = {}

    def start(self, op: str) -> int:
        return self._of(op).now

    def advance(self, op: str, step: int, to: int) -> None:
        history = self._of(op)
        if to < history.now:
            raise InternalError(f"`{op}` would go back from {history.now} to {to}")
        history.set(step, to)

    def at_end(self, step: int) -> dict[str, int]:
        return {op: h.at_end(step, self._restored.get(op, 0)) for op, h in sorted(self._by_op.items())} | {
            op: at for op, at in self._restored.items() if op not in self._by_op
        }

    def _of(self, op: str) -> History:
        if op not in self._by_op:
            self._by_op[op] = History(now=self._restored.get(op, 0))
        return self._by_op[op]
