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

    def set(self, step: int, value: int) -> None:
        self.now = value
        self.by_step[step] = value
        for old in sorted(self.by_step)[:-REMEMBERED_STEPS]:
            del self.by_step[old]

    def at_end(self, step: int, initial: int = 0) -> int:
        return max(((s, v) for s, v in self.by_step.items() if s <= step), default=(0, initial))[1]


class WeightEdge:
    """One weights channel: the versions that wait on it, the last one published, the one its target holds.

    Version v is the v-th that was published; version 0 is the initial weights. `waiting`: what lies on the channel
    after `step` steps, oldest first: one for each initial token, the newest being the last one published. `newest`: the
    target takes the newest version that is there instead of the next one: tokens only bound how far it is ahead.
    """

    def __init__(self, edge: str, waiting: Sequence[int], step: int = 0, *, newest: bool = False) -> None:
        if not waiting:
            raise InternalError(f"the channel of `{edge}` has no initial token")
        first = step - len(waiting) + 1
        self.edge = edge
        self.published = History(waiting[-1], {first + place: version for place, version in enumerate(waiting)})
        self._waiting = deque(waiting)
        self._tokens = len(waiting)
        self._newest = newest
        self.there = waiting[-1]
        """The newest version whose sending is over."""
        self.held = 0

    def send(self, step: int, *, idle: bool) -> int:
        """The version that a send's token stands for: a new one, or the last one again if it is idle."""
        version = self.published.now + (0 if idle else 1)
        self._waiting.append(version)
        self.published.set(step, version)
        return version

    def receive(self) -> int:
        """Take the oldest version that waits, or the newest that is there."""
        if not self._waiting:
            raise InternalError(f"nothing waits on `{self.edge}`")
        version = self._waiting.popleft()
        return self.there if self._newest else version

    def at_end(self, step: int) -> int:
        """The last version published up to the end of `step`."""
        return self.published.at_end(step)

    def waiting_at_end(self, step: int) -> tuple[int, ...]:
        """What lies on the channel between `step` and the next step, whoever may be ahead by now."""
        if self._newest:
            return (self.at_end(step),) * self._tokens
        return tuple(self.at_end(s) for s in range(step - self._tokens + 1, step + 1))

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
