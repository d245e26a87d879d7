"""The slots of an environment role: processes that its episodes are spread over, each asked by a thread of its own.

Takes what episodes begin from and what was said; gives what was seen, or what went wrong with that one episode. Where a
process has ended, the others of its episodes are begun again and their turns taken once more: an environment is a
function of its seeds and of what is said to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from flowrl.backends.envs.names import is_own
from flowrl.backends.envs.process import EnvHere, EnvProcess
from flowrl.backends.envs.protocol import Seen, Start
from flowrl.backends.envs.served import Begin, Furnish, Over, Turn
from flowrl.backends.user_code import UserCodeError
from flowrl.backends.user_process.process import Limits, share_of_memory
from flowrl.diag.span import Span
from flowrl.graph.params import EnvParams

MOST_PROCESSES = 8
"""Of one rank; turns of its episodes are taken in so many at once."""
_Asked = TypeVar("_Asked")


@dataclass(slots=True)
class _Played:
    """An episode as far as it has come: what is said again where its process has ended."""

    start: Start
    slot: int
    born: int
    """Restarts of its slot when it was begun."""
    actions: list[str] = field(default_factory=list[str])


class Slots:
    """Raises FlowError as names.maker_of does."""

    def __init__(self, params: EnvParams, folder: Path, span: Span | None, ranks: int = 1) -> None:
        furnish = Furnish(params.env, folder, span, dict(params.args))
        self._timeout_seconds = params.timeout_seconds
        self._played: dict[int, _Played] = {}
        self._slots: list[EnvProcess | EnvHere] = []
        self._threads: ThreadPoolExecutor | None = None
        if is_own(params.env):
            self._slots = [EnvHere(furnish)]
        else:
            count = min(params.parallel or 1, MOST_PROCESSES)
            limits = Limits(share_of_memory(ranks * count))
            try:
                for _ in range(count):
                    self._slots.append(EnvProcess(furnish, limits))
            except BaseException:
                self.close()
                raise
        if len(self._slots) > 1:
            self._threads = ThreadPoolExecutor(len(self._slots))

    @property
    def restarts(self) -> int:
        """How often a process has been started beyond the first time."""
        return sum(slot.restarts for slot in self._slots)

    def start(self, starts: Sequence[Start]) -> list[Seen | UserCodeError]:
        """Begin episodes, each in the slot that has the fewest."""
        held = Counter(played.slot for played in self._played.values())
        for begin in starts:
            slot = min(range(len(self._slots)), key=lambda each: (held[each], each))
            held[slot] += 1
            self._played[begin.id] = _Played(begin, slot, self._slots[slot].restarts)
        return self._spread(starts, lambda begin: begin.id, self._start)

    def step(self, turns: Sequence[tuple[int, str]]) -> list[Seen | UserCodeError]:
        """Take a turn of each of these episodes."""
        return self._spread(turns, lambda turn: turn[0], self._step)

    def end(self, ids: Sequence[int]) -> None:
        """These episodes are over; one that has failed is forgotten already."""
        for id in ids:
            played = self._played.pop(id, None)
            slot = None if played is None else self._slots[played.slot]
            if played is not None and slot is not None and slot.is_up() and slot.restarts == played.born:
                slot.play(Over(id), None)

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False)
        slots, self._slots = self._slots, []
        for slot in slots:
            slot.close()

    def _start(self, begin: Start) -> Seen:
        played = self._played[begin.id]
        slot = self._slots[played.slot]
        played.born = slot.restarts
        seen = slot.play(Begin(begin), self._timeout_seconds)
        played.born = slot.restarts  # a slot that had ended was started by this very message
        assert seen is not None
        return seen

    def _step(self, turn: tuple[int, str]) -> Seen:
        id, action = turn
        played = self._played[id]
        slot = self._slots[played.slot]
        if slot.restarts != played.born or not slot.is_up():
            self._again(played)
        seen = slot.play(Turn(id, action), self._timeout_seconds)
        played.actions.append(action)
        assert seen is not None
        return seen

    def _again(self, played: _Played) -> None:
        """Begin an episode whose process has ended, and take the turns that it had taken."""
        self._start(played.start)
        for action in played.actions:
            self._slots[played.slot].play(Turn(played.start.id, action), self._timeout_seconds)

    def _spread(
        self, asked: Sequence[_Asked], id_of: Callable[[_Asked], int], ask: Callable[[_Asked], Seen]
    ) -> list[Seen | UserCodeError]:
        """The answers, in order: slots work at once, each on its own in turn."""
        answers: dict[int, Seen | UserCodeError] = {}

        def one(each: _Asked) -> None:
            try:
                answers[id_of(each)] = ask(each)
            except UserCodeError as error:
                answers[id_of(each)] = error

        def of_slot(slot: int) -> None:
            for each in asked:
                if self._played[id_of(each)].slot == slot:
                    one(each)

        if self._threads is None:
            of_slot(0)
        else:
            list(self._threads.map(of_slot, range(len(self._slots))))
        for each in asked:
            if isinstance(answers[id_of(each)], UserCodeError):
                self._played.pop(id_of(each))
        return [answers[id_of(each)] for each in asked]
