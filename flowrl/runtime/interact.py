"""An interaction (`<->`): an environment and the generators it plays with, from the first message to the last turn.

Takes the work of all its members, which start together, and something to call each of them by; gives what each has
made. Texts go to and fro, tokens stay with their generator. Its rows leave from the generators, with the environment's
fields beside their own; the environment itself has only metrics. Knows no launcher.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from flowrl.backends.batch import Batch, IntArray, sample_ids
from flowrl.backends.contract import Call, Result
from flowrl.backends.envs.turns import Heard, Left, Said
from flowrl.diag.diagnostic import InternalError
from flowrl.graph.graph import Graph, Kind, Op
from flowrl.plan.plan import StagePlan
from flowrl.runtime.launchers.contract import Work
from flowrl.runtime.rows import generators_of_steps

Next = dict[str, list[Heard]]


class Speaker(Protocol):
    """A generator that plays episodes: backends/generators/episodes.py has what is common to all."""

    def begin(self, call: Call, ids: IntArray, prompts: Sequence[object] | None) -> None:
        """Episodes of samples `ids`. `prompts`: what each is asked first, where no environment says it."""
        ...

    def speak(self, heard: Sequence[Heard]) -> Sequence[Said]:
        """Begin a turn in each of these episodes, and give turns that are done, of these or of earlier ones: one at
        least while any is under way."""
        ...

    def finish(self, extra: Batch) -> Result:
        """Sample rows of the episodes, with the columns of `extra` for its ids; others are left out."""
        ...


class World(Protocol):
    """An environment: backends/envs/environment.py."""

    def enter(self, call: Call, ids: IntArray, agents: Sequence[str]) -> Next: ...

    def answer(self, said: Mapping[str, Sequence[Said]]) -> Next: ...

    def leave(self) -> Left: ...


class Meetings:
    """Gathers the works of an interaction, which are submitted one by one."""

    def __init__(self, stage: StagePlan) -> None:
        self._members = stage.programs.together
        self._there: dict[tuple[tuple[str, ...], int], list[Work]] = {}

    def add(self, work: Work) -> tuple[Work, ...] | None:
        """All works of its interaction, once it is the last of them; nothing while others are to come. None: it is of
        no interaction."""
        members = self._members.get(work.firing.instruction.id)
        if members is None:
            return None
        key = (members, work.firing.step)
        there = self._there.setdefault(key, [])
        there.append(work)
        return tuple(self._there.pop(key)) if len(there) == len(members) else ()


def converse(world: World, speakers: Mapping[str, Speaker], call: Call, ids: IntArray) -> Left:
    """Play the episodes of samples `ids` to their ends; `call` is the environment's step. Speakers have begun."""
    following = world.enter(call, ids, tuple(speakers))
    under_way = dict.fromkeys(speakers, 0)
    while any(following.values()) or any(under_way.values()):
        said: dict[str, Sequence[Said]] = {}
        for agent, speaker in speakers.items():
            heard = following.get(agent, [])
            if not heard and not under_way[agent]:
                continue
            said[agent] = speaker.speak(heard)
            under_way[agent] += len(heard) - len(said[agent])
            if not said[agent]:
                raise InternalError(f"`{agent}` has {under_way[agent]} turns under way and says nothing")
        following = world.answer(said)
    return world.leave()


def agent_order(graph: Graph, work: Work) -> tuple[int, str]:
    """The environment first, then its generators in the order of the flow's edges: they take turns in that order where
    the environment names nobody."""
    op = work.firing.instruction.op or ""
    order = next((g for g in generators_of_steps(graph).values() if op in g), ())
    return (order.index(op) + 1 if op in order else 0), op


def first_words(graph: Graph, call: Call, batch: Batch) -> tuple[IntArray, list[object] | None]:
    """The samples of a call of generate in an interaction, and what each is asked first: nothing where a reset has made
    its rows, which are samples already."""
    if has_reset(graph, call.op):
        return batch.ids, None
    samples = call.samples_per_prompt
    places = np.repeat(np.arange(len(batch)), samples).tolist()
    prompts = batch.objects("prompt")
    return sample_ids(batch, samples), [prompts[place] for place in places]


def has_reset(graph: Graph, op: Op) -> bool:
    """Whether the first messages of a call of generate are an environment's."""
    sources = [i.source for i in op.inputs if i.slot == "prompt" and i.source is not None]
    return any(graph.role(graph.op(source).role).kind is Kind.ENV for source in sources)
