"""An interaction (`<->`): the works of its members, which are submitted one by one and start together.

Its rows leave from the generators, with the environment's fields beside their own; the environment itself has only
metrics. How they talk: backends/envs/conversation.py. Knows no launcher.
"""

from __future__ import annotations

import numpy as np

from flowrl.backends.batch import Batch, IntArray, sample_ids
from flowrl.backends.contract import Call
from flowrl.graph.graph import Graph, Kind, Op
from flowrl.plan.plan import StagePlan
from flowrl.runtime.launchers.contract import Work
from flowrl.runtime.rows import generators_of_steps


class Meetings:
    """Gathers the works of an interaction, which are submitted one by one."""

    def __init__(self, stage: StagePlan) -> None:
        self._graph = stage.graph
        self._members = stage.programs.together
        self._there: dict[tuple[tuple[str, ...], int], list[Work]] = {}

    def add(self, work: Work) -> tuple[Work, ...] | None:
        """All works of its interaction, once it is the last of them: the environment's, then those of its generators in
        the order in which they take turns where the environment names nobody. Nothing while others are to come. None:
        it is of no interaction."""
        members = self._members.get(work.firing.instruction.id)
        if members is None:
            return None
        key = (members, work.firing.step)
        there = self._there.setdefault(key, [])
        there.append(work)
        return tuple(sorted(self._there.pop(key), key=self._turn)) if len(there) == len(members) else ()

    def _turn(self, work: Work) -> int:
        """Of a generator, its place in the order of the flow's edges."""
        op = work.firing.instruction.op or ""
        order = next((g for g in generators_of_steps(self._graph).values() if op in g), ())
        return order.index(op) + 1 if op in order else 0


def first_words(call: Call, batch: Batch, *, reset: bool) -> tuple[IntArray, list[object] | None]:
    """The samples of a call of generate in an interaction, and what each is asked first: nothing where a reset has made
    its rows, which are samples already."""
    if reset:
        return batch.ids, None
    samples = call.samples_per_prompt
    places = np.repeat(np.arange(len(batch)), samples).tolist()
    prompts = batch.objects("prompt")
    return sample_ids(batch, samples), [prompts[place] for place in places]


def has_reset(graph: Graph, op: Op) -> bool:
    """Whether the first messages of a call of generate are an environment's."""
    sources = [i.source for i in op.inputs if i.slot == "prompt" and i.source is not None]
    return any(graph.role(graph.op(source).role).kind is Kind.ENV for source in sources)
