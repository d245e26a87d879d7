"""What moves from step to step without being rows: weight versions on their channels, and places in data sets.

Both remember what they were at the end of each recent step, because a checkpoint of step s is written when other pools
may already be in a later one. Counts only; holds no weights and no rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from flowrl.diag.diagnostic import InternalError
from flowrl.program.program import ChannelKind, Program

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

    def at_end(self, step: int, initial: int) -> int:
        return max(((s, v) for s, v in self.by_step.items() if s <= step), default=(0, initial))[1]


class WeightEdge:
    """One weights channel: the versions that wait on it, the last one published, the one its target holds.

    Version v is the v-th that was published; version 0 is the initial weights. `restored` is the version that a
    checkpoint's weights count as: all tokens on the channel stand for it, so a resumed lagged run starts fresher.
    """

    def __init__(self, edge: str, tokens: int, restored: int = 0) -> None:
        self.edge = edge
        self.published = History(now=restored)
        self._initial = restored
        self._waiting = deque([restored] * tokens)
        self.held = 0

    def send(self, step: int, *, idle: bool) -> int:
        """The version that a send's token stands for: a new one, or the last one again if it is idle."""
        version = self.published.now + (0 if idle else 1)
        self._waiting.append(version)
        self.published.set(step, version)
        return version

    def receive(self) -> int:
        """Take the oldest version that waits."""
        if not self._waiting:
            raise InternalError(f"nothing waits on `{self.edge}`")
        return self._waiting.popleft()

    def at_end(self, step: int) -> int:
        """The last version published up to the end of `step`."""
        return self.published.at_end(step, self._initial)


def weight_edges(program: Program, restored: Mapping[str, int]) -> dict[str, WeightEdge]:
    """One for each weights channel, by the id of its edge."""
    return {
        channel.edge: WeightEdge(channel.edge, channel.initial_tokens, restored.get(channel.edge, 0))
        for channel in program.channels
        if channel.kind is ChannelKind.WEIGHTS and channel.edge is not None
    }


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
