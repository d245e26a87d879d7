"""Groups of a session that goes on from step to step: which prompts a take gives, and which are too old.

Takes prompts with all their samples, told when each is done; gives choices. Knows no engine, no tokens and no columns.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Generic, TypeVar

from flowrl.backends.contract import Gather

Row = TypeVar("Row", bound=Hashable)


def choose(done: Sequence[int], gather: Gather) -> tuple[int, ...] | None:
    """The prompts that a take gives, of those that are done, in the order in which they were; None while it must wait.

    Those that are due go first. It waits until it has as many as it gives, and until no more of those that are due are
    left than the step's later takes have room for.
    """
    due = set(gather.due)
    ready = [prompt for prompt in done if prompt in due]
    urgent = ready[: gather.prompts]
    others = [prompt for prompt in done if prompt not in due][: gather.prompts - len(urgent)]
    if len(urgent) + len(others) < gather.prompts or len(due) - len(urgent) > gather.later:
        return None
    return (*urgent, *others)


class Groups(Generic[Row]):
    """Rows that are under way or done, by prompt, in the order in which their prompts came."""

    def __init__(self) -> None:
        self._rows: dict[int, list[Row]] = {}
        self._left: dict[int, int] = {}
        """Rows of each prompt that are not done."""
        self._done: list[int] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, prompt: int, rows: Iterable[Row]) -> None:
        self._rows[prompt] = list(rows)
        self._left[prompt] = len(self._rows[prompt])

    def finish(self, prompt: int) -> None:
        """One more row of a prompt is done."""
        self._left[prompt] -= 1
        if self._left[prompt] == 0:
            self._done.append(prompt)

    def rows(self) -> Iterable[Row]:
        return (row for rows in self._rows.values() for row in rows)

    def choice(self, gather: Gather) -> tuple[int, ...] | None:
        return choose(self._done, gather)

    def pop(self, prompts: Iterable[int]) -> list[Row]:
        """The rows of prompts, which are forgotten here."""
        gone = set(prompts)
        self._done = [prompt for prompt in self._done if prompt not in gone]
        found: list[Row] = []
        for prompt in gone:
            del self._left[prompt]
            found += self._rows.pop(prompt)
        return found

    def too_old(self, gather: Gather, version_of: Callable[[Row], int | None]) -> tuple[int, ...]:
        """Prompts with a row that has a token of a version before `gather.oldest`."""
        if gather.oldest is None:
            return ()
        oldest = gather.oldest
        return tuple(p for p, rows in self._rows.items() if any(_before(version_of(row), oldest) for row in rows))


def _before(version: int | None, oldest: int) -> bool:
    return version is not None and version < oldest


def without(gather: Gather, dropped: Sequence[int]) -> Gather:
    """What is left to give when prompts were dropped, which count; one at least, or a step would train on none."""
    if not dropped or not gather.prompts:
        return gather
    return Gather(max(1, gather.prompts - len(dropped)), gather.later, (), gather.oldest)
