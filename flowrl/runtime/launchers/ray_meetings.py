"""A meeting: the works of one interaction on Ray, from the generators' first word to their rows.

Generators begin their episodes; the environment's actor then talks with them until all are over (ray_voices.py); at
last each generator makes rows of its own, with the environment's fields, which it is given by reference. The members
end together: until then nothing of them is taken in, so that all can be begun again where one is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from flowrl.plan.plan import StagePlan
from flowrl.runtime.interact import has_reset
from flowrl.runtime.launchers.contract import Completion, Work
from flowrl.runtime.launchers.ray_flights import Flight, slots_of
from flowrl.runtime.launchers.ray_voices import replicas_of
from flowrl.runtime.rows import replicas
from flowrl.runtime.setups import call_of


class Meeting:
    """Of `works`, the environment's first. `number` tells it from earlier ones; `actors` gives those of a role."""

    def __init__(
        self, stage: StagePlan, works: Sequence[Work], number: int, actors: Callable[[str], Sequence[Any]], now: float
    ) -> None:
        self._stage, self._number, self._actors = stage, number, actors
        self.flights = tuple(Flight(work, began_seconds=now) for work in works)
        self._world, *self._generators = self.flights
        self._phases = [self._talk, self._finish]
        self._started: dict[str, float] = {}
        for flight in self._generators:
            self._begin(flight)

    @property
    def pending(self) -> dict[Any, Flight]:
        """By reference of an outcome that is to come."""
        return {reference: flight for flight in self.flights for reference in flight.pending}

    def go_on(self) -> list[Completion]:
        """What the last outcome has made possible: the next phase, or, after the last one, all completions."""
        if self.pending:
            return []
        if self._phases:
            self._phases.pop(0)()
            return []
        return [self._ended(flight) for flight in self.flights]

    def _begin(self, flight: Flight) -> None:
        call = call_of(self._stage, flight.work)
        reset = has_reset(self._stage.graph, call.op)
        for rank, actor in enumerate(self._actors(flight.role)):
            ids = None if flight.work.rank_ids is None else flight.work.rank_ids[rank]
            slots, batches = slots_of(flight.work.inputs, ids)
            flight.pending[actor.begin.remote(self._number, call, slots, ids, reset, *batches)] = rank

    def _talk(self) -> None:
        cast, in_rounds = [], False
        for flight in self._generators:
            begun = [flight.outcomes[rank] for rank in sorted(flight.outcomes)]
            self._started[flight.role] = min(outcome.start_seconds for outcome in begun)
            in_rounds |= any(outcome.value[1] for outcome in begun)
            cast += replicas_of(
                flight.role, self._actors(flight.role), self._replicas(flight.role), [o.value[0] for o in begun]
            )
        first = self._generators[0].role
        ids = np.unique(np.concatenate([each.ids for each in cast if each.agent == first]))
        agents = tuple(flight.role for flight in self._generators)
        (actor,) = self._actors(self._world.role)
        talk = actor.talk.options(num_returns=1 + len(agents))
        call = call_of(self._stage, self._world.work)
        outcome, *left = talk.remote(self._number, call, ids, agents, tuple(cast), in_rounds)
        self._world.pending[outcome] = 0
        self._left = dict(zip(agents, left, strict=True))

    def _finish(self) -> None:
        for flight in self._generators:
            flight.outcomes.clear()
            for rank, actor in enumerate(self._actors(flight.role)):
                outcome, flight.rows[rank] = actor.finish.options(num_returns=2).remote(self._left[flight.role])
                flight.pending[outcome] = rank

    def _ended(self, flight: Flight) -> Completion:
        """As of a call that began with its first word."""
        done = flight.completion()
        start = self._started.get(flight.role, done.start_seconds)
        return replace(done, start_seconds=start, seconds=done.start_seconds + done.seconds - start)

    def _replicas(self, role: str) -> tuple[int, ...]:
        layout = next(each.layout for pool in self._stage.pools for each in pool.roles if each.role == role)
        return replicas(layout, self._stage.graph.role(role).backend)
