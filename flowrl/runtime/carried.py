"""What a session that goes on from step to step works on: which prompts, on which rank, since which weight version.

Takes ids, versions and steps; gives what a step's data set shall give, which prompts begin, and what a take asks of
each rank. Pure: no rows, no clock, no launcher. Each stands for a generate call whose unfinished responses go on.

A step draws as many prompts as it trains on, the first one AHEAD_STEPS more, so that an engine has work while the
longest of a step go on, and the last ones fewer: in the end each prompt that was drawn has been trained on once.

Lag is bounded by when a response may begin and by what is waited for (AReaL's rule of admission; Fu et al. 2025,
arXiv:2505.24298, eq. 3). One that begins with version v must be trained on before more than `max_lag` versions have
been published after v: until step last(v). So before step s no more than the prompts of the steps s … last(v) are under
way, and where stale samples are waited for, a take gives those for which its step is the last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from flowrl.backends.batch import IntArray
from flowrl.backends.contract import Gather
from flowrl.diag.diagnostic import InternalError

AHEAD_STEPS = 1
"""Steps of prompts that may be under way beyond those of the step."""

Published = Callable[[int], int]
"""The newest weight version at the end of a step."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a step and its lag allow."""

    prompts: int
    """Of a step."""
    steps: int
    """The last step that trains."""
    max_lag: int
    drops: bool
    """Whether what is too old is dropped; else it is waited for before it is."""
    published: Published

    def last(self, version: int, step: int) -> int:
        """The last step from `step` on that may train on what begins with `version`; the one before if none may."""
        last = step - 1
        while last < self.steps and self.published(last) <= version + self.max_lag:
            last += 1
        return last


class Carried:
    """Of one stage from its start, or from a checkpoint: `left` are prompts that were drawn and not trained on then,
    `drawn` how many had been drawn."""

    def __init__(self, bounds: Bounds, ranks: int, step: int = 0, left: Sequence[int] = ()) -> None:
        self._bounds, self._ranks, self._start = bounds, ranks, step
        self._left = tuple(sorted(left))
        self._queue: list[int] = []
        """Drawn and not begun, in their order."""
        self._flying: dict[int, tuple[int, int]] = {}
        """Begun and not given, with rank and version, in the order in which they began."""
        self._waiting: set[int] = set(left)
        """Drawn up to the last step that is over, and not given in it or before."""
        self._drawn: dict[int, tuple[int, ...]] = {}
        self._gone: dict[int, list[int]] = {}
        """By step, those given or dropped."""
        self.begun = False
        """Whether the session has been opened."""

    def draw(self, step: int, cursor: int) -> tuple[int, int]:
        """Which rows of its order a data set gives for `step`: the first, and how many. After a restart they begin with
        those that were under way."""
        fresh = self._target(step) - self._target(step - 1)
        first = cursor if step != self._start + 1 else min((*self._left, cursor))
        return first, cursor - first + fresh

    def drawn(self, step: int, ids: Iterable[int], cursor: int) -> None:
        """What it gave; `cursor`: where its new rows begin."""
        known = frozenset(self._left)
        new = tuple(id for id in ids if id >= cursor or id in known)
        self._drawn[step] = new
        self._queue += new

    def open(self, step: int, version: int) -> tuple[IntArray, ...]:
        """The prompts that begin in `step`, by rank: on the one that has the fewest under way."""
        steps = min(1 + AHEAD_STEPS, self._bounds.last(version, step) - step + 1)
        room = max(0, steps * self._bounds.prompts - len(self._flying))
        begin, self._queue = self._queue[:room], self._queue[room:]
        load = [sum(at == rank for at, _ in self._flying.values()) for rank in range(self._ranks)]
        shares: list[list[int]] = [[] for _ in range(self._ranks)]
        for prompt in begin:
            rank = min(range(self._ranks), key=lambda r: (load[r], r))
            load[rank] += 1
            shares[rank].append(prompt)
            self._flying[prompt] = (rank, version)
        self.begun = True
        return tuple(np.asarray(sorted(share), dtype=np.int64) for share in shares)

    def gather(self, step: int, number: int, parts: int) -> tuple[Gather, ...]:
        """What take `number` (from 1) of `parts` asks of each rank."""
        bounds, gone = self._bounds, len(self._gone.get(step, ()))
        whole = min(max(0, bounds.prompts - gone), len(self._flying))
        now = min(whole, max(0, bounds.prompts * number // parts - gone))
        held = [[p for p, (at, _) in self._flying.items() if at == rank] for rank in range(self._ranks)]
        due = [[] if bounds.drops else [p for p in own if self._is_due(p, step)] for own in held]
        most = [len(own) for own in held]
        of_step = shared_out(whole, [len(own) for own in due], most)
        of_take = shared_out(now, [0] * self._ranks, of_step)
        oldest = bounds.published(step - 1) - bounds.max_lag if bounds.drops else None
        return tuple(
            Gather(prompts=n, later=all_ - n, due=tuple(own), oldest=oldest)
            for n, all_, own in zip(of_take, of_step, due, strict=True)
        )

    def gave(self, step: int, prompts: Iterable[int], oldest: int | None) -> None:
        """Prompts that a take has given or dropped; `oldest`: the version of the oldest token that it has given. Raises
        InternalError if that is older than the flow allows."""
        age = 0 if oldest is None else self._bounds.published(step - 1) - oldest
        if age > self._bounds.max_lag:
            raise InternalError(f"step {step}: a sample is {age} versions old, {self._bounds.max_lag} are allowed")
        for prompt in prompts:
            if self._flying.pop(prompt, None) is not None:
                self._gone.setdefault(step, []).append(prompt)

    def waiting_at_end(self, step: int) -> tuple[int, ...]:
        """What was drawn up to the end of `step` and not given by then, whoever may be ahead by now; ascending."""
        drawn = {id for s, ids in self._drawn.items() if s <= step for id in ids}
        gone = {id for s, ids in self._gone.items() if s <= step for id in ids}
        return tuple(sorted((self._waiting | drawn) - gone))

    def needed(self) -> frozenset[int]:
        """Prompts that steps which are not over may still read."""
        return frozenset(self._waiting.union(*self._drawn.values()))

    def step_done(self, step: int) -> None:
        self._waiting = set(self.waiting_at_end(step))
        for by_step in (self._drawn, self._gone):
            for old in [s for s in by_step if s <= step]:
                del by_step[old]

    def _is_due(self, prompt: int, step: int) -> bool:
        return self._bounds.last(self._flying[prompt][1], step) <= step

    def _target(self, step: int) -> int:
        """Prompts drawn up to the end of a step."""
        ahead = step + AHEAD_STEPS if step > 0 else 0
        return min(ahead, self._bounds.steps) * self._bounds.prompts


def shared_out(total: int, least: Sequence[int], most: Sequence[int]) -> tuple[int, ...]:
    """`total` over ranks, each with at least and at most so many: one by one to whom the most is left, the lower rank
    first. Less than `least` where the total is."""
    shares = [0] * len(most)
    for rank, wanted in enumerate(least):
        shares[rank] = min(wanted, most[rank], total - sum(shares))
    for _ in range(total - sum(shares)):
        rank = max(range(len(most)), key=lambda r: (most[r] - shares[r], -r))
        if shares[rank] == most[rank]:
            break
        shares[rank] += 1
    return tuple(shares)
