"""A conversation: an environment and the generators it plays with, from the first message to the last turn.

Takes an environment and its generators' voices; gives what the environment knows when all episodes are over. Texts go
to and fro, tokens stay with their generator. Where generators decode turns apart, an episode whose environment has
answered goes on while others are still spoken or answered; where one decodes turns together, all wait for each other.
Knows no process: voices are of generators here (`Here`) or elsewhere (runtime/launchers/ray_voices.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from flowrl.backends.batch import Batch, IntArray
from flowrl.backends.contract import Call, Result
from flowrl.backends.envs.turns import Heard, Left, Next, Said


class Speaker(Protocol):
    """A generator that plays episodes: backends/generators/episodes.py has what is common to all."""

    in_rounds: bool
    """Whether turns that are asked for at once are decoded together, so that it is better asked for all of them."""

    def begin(self, call: Call, ids: IntArray, prompts: Sequence[object] | None) -> None:
        """Episodes of samples `ids`. `prompts`: what each is asked first, where no environment says it. Whatever an
        earlier call has left half done is forgotten."""
        ...

    def speak(self, heard: Sequence[Heard], steps: int) -> Sequence[Said]:
        """Begin a turn in each of these episodes, and give turns that are done, of these or of earlier ones: as soon as
        there is one, or, if turns are decoded apart, none after so many tokens of each."""
        ...

    def finish(self, extra: Batch) -> Result:
        """Sample rows of the episodes, with the columns of `extra` for its ids; others are left out."""
        ...


class World(Protocol):
    """An environment: environment.py."""

    @property
    def busy(self) -> bool: ...

    def enter(self, call: Call, ids: IntArray, agents: Sequence[str]) -> None: ...

    def tell(self, said: Mapping[str, Sequence[Said]]) -> None: ...

    def heard(self, *, wait: bool) -> Next: ...

    def leave(self) -> Left: ...


class Voices(Protocol):
    """The generators of a conversation, by agent."""

    @property
    def in_rounds(self) -> bool: ...

    @property
    def busy(self) -> bool:
        """Whether turns are to be spoken, or under way."""
        ...

    def ask(self, following: Next) -> None:
        """What is to be answered."""
        ...

    def said(self, *, wait: bool) -> dict[str, list[Said]]:
        """Turns that are done; `wait`: take the time that one needs. In rounds: all that were asked for."""
        ...


def converse(world: World, voices: Voices, agents: Sequence[str], call: Call, ids: IntArray) -> Left:
    """Play the episodes of samples `ids` to their ends; `call` is the environment's step. Speakers have begun."""
    world.enter(call, ids, agents)
    while True:
        voices.ask(world.heard(wait=not voices.busy))
        while voices.in_rounds and world.busy:
            voices.ask(world.heard(wait=True))
        if not voices.busy:
            return world.leave()
        world.tell(voices.said(wait=not world.busy))


class Here:
    """Voices of generators in this process. They speak a token at a time, and listen in between."""

    def __init__(self, speakers: Mapping[str, Speaker]) -> None:
        self._speakers = speakers
        self._asked: dict[str, list[Heard]] = {agent: [] for agent in speakers}
        self._under_way = dict.fromkeys(speakers, 0)

    @property
    def in_rounds(self) -> bool:
        return any(speaker.in_rounds for speaker in self._speakers.values())

    @property
    def busy(self) -> bool:
        return any(self._asked.values()) or any(self._under_way.values())

    def ask(self, following: Next) -> None:
        for agent, heard in following.items():
            self._asked[agent] += heard

    def said(self, *, wait: bool) -> dict[str, list[Said]]:
        found: dict[str, list[Said]] = {}
        for agent, speaker in self._speakers.items():
            heard, self._asked[agent] = self._asked[agent], []
            if heard or self._under_way[agent]:
                found[agent] = list(speaker.speak(heard, 1))
                self._under_way[agent] += len(heard) - len(found[agent])
        return found
