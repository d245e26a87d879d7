"""The slots of an environment role: processes that its episodes are spread over, each asked by a thread of its own.

Takes what episodes begin from and what was said; gives what was seen, or what went wrong with that one episode, as soon
as it is there. Where a process has ended, the others of its episodes are begun again and their turns taken once more:
an environment is a function of its seeds and of what is said to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue

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
        self._asked: dict[int, _Played] = {}
        """Those whose answer is to come."""
        self._answers: SimpleQueue[tuple[_Played, Seen | Exception]] = SimpleQueue()
        self._slots: list[EnvProcess | EnvHere] = []
        self._threads: list[ThreadPoolExecutor] = []
        """Of each slot that is a process."""
        if is_own(params.env):
            self._slots = [EnvHere(furnish)]
            return
        count = min(params.parallel or 1, MOST_PROCESSES)
        limits = Limits(share_of_memory(ranks * count))
        try:
            for _ in range(count):
                self._slots.append(EnvProcess(furnish, limits))
                self._threads.append(ThreadPoolExecutor(1))
        except BaseException:
            self.close()
            raise

    @property
    def restarts(self) -> int:
        """How often a process has been started beyond the first time."""
        return sum(slot.restarts for slot in self._slots)

    @property
    def busy(self) -> bool:
        """Whether an answer is to come."""
        return bool(self._asked)

    def start(self, starts: Sequence[Start]) -> None:
        """Begin episodes, each in the slot that has the fewest."""
        held = Counter(played.slot for played in self._played.values())
        for begin in starts:
            slot = min(range(len(self._slots)), key=lambda each: (held[each], each))
            held[slot] += 1
            played = self._played[begin.id] = _Played(begin, slot, self._slots[slot].restarts)
            self._ask(played, lambda played=played: self._start(played))

    def step(self, id: int, action: str) -> None:
        """Take a turn of an episode."""
        played = self._played[id]
        self._ask(played, lambda: self._step(played, action))

    def answers(self, *, wait: bool) -> list[tuple[int, Seen | UserCodeError]]:
        """What was seen since the last call, by episode; `wait`: of one at least, if any is to come."""
        found: list[tuple[int, Seen | UserCodeError]] = []
        while self._asked:
            try:
                played, seen = self._answers.get(block=wait and not found)
            except Empty:
                break
            id = played.start.id
            if self._asked.get(id) is not played:  # given up meanwhile
                continue
            del self._asked[id]
            if isinstance(seen, UserCodeError):
                del self._played[id]
            elif isinstance(seen, Exception):
                raise seen
            found.append((id, seen))
        return found

    def end(self, ids: Sequence[int]) -> None:
        """These episodes are over, or given up; one that has failed is forgotten already."""
        for id in ids:
            played = self._played.pop(id, None)
            self._asked.pop(id, None)
            if played is not None:
                self._in_slot(played, lambda played=played: self._end(played))

    def close(self) -> None:
        for thread in self._threads:
            thread.shutdown(wait=False, cancel_futures=True)
        slots, self._slots = self._slots, []
        for slot in slots:
            slot.close()

    def _ask(self, played: _Played, ask: Callable[[], Seen]) -> None:
        def answer() -> None:
            try:
                self._answers.put((played, ask()))
            except Exception as error:
                self._answers.put((played, error))

        self._asked[played.start.id] = played
        self._in_slot(played, answer)

    def _in_slot(self, played: _Played, do: Callable[[], None]) -> None:
        """In its turn among what the slot is asked."""
        if self._threads:
            self._threads[played.slot].submit(do)
        else:
            do()

    def _start(self, played: _Played) -> Seen:
        slot = self._slots[played.slot]
        played.born = slot.restarts
        seen = slot.play(Begin(played.start), self._timeout_seconds)
        played.born = slot.restarts  # a slot that had ended was started by this very message
        assert seen is not None
        return seen

    def _step(self, played: _Played, action: str) -> Seen:
        slot = self._slots[played.slot]
        if slot.restarts != played.born or not slot.is_up():
            self._again(played)
        seen = slot.play(Turn(played.start.id, action), self._timeout_seconds)
        played.actions.append(action)
        assert seen is not None
        return seen

    def _again(self, played: _Played) -> None:
        """Begin an episode whose process has ended, and take the turns that it had taken."""
        self._start(played)
        for action in played.actions:
            self._slots[played.slot].play(Turn(played.start.id, action), self._timeout_seconds)

    def _end(self, played: _Played) -> None:
        slot = self._slots[played.slot]
        if slot.is_up() and slot.restarts == played.born:
            slot.play(Over(played.start.id), None)
