"""Voices of generators that are actors, as the environment's actor hears them (backends/envs/conversation.py).

A turn is texts and ids: what was asked of a rank by then goes in one call, and what is done comes back in its answer.
Tokens stay in the generator's actor. A rank is asked for a few tokens of each of its episodes at a time, so that what
an environment answers meanwhile joins them soon. Imports Ray where it waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from flowrl.backends.batch import IntArray
from flowrl.backends.envs.turns import Heard, Next, Said

STEPS = 16
"""Tokens of each episode that a rank makes before it answers, if no turn is done before."""
POLL_SECONDS = 0.002
"""How long is waited for generators while environments are at work, too."""
PEER_SECONDS = 1.0
"""What the other ranks of an engine get to be found dead, where one has failed."""


class VoiceError(Exception):
    """A rank of a generator has failed, with `error`; one of Ray's: its process is gone, or its host."""

    def __init__(self, agent: str, voice: int, error: Exception, *, gone: bool) -> None:
        super().__init__(agent, voice, error, gone)
        self.agent, self.voice, self.error, self.gone = agent, voice, error, gone

    def __reduce__(self) -> Any:
        return _voice_error, self.args


def _voice_error(agent: str, voice: int, error: Exception, gone: bool) -> VoiceError:
    return VoiceError(agent, voice, error, gone=gone)


@dataclass(frozen=True, slots=True)
class Replica:
    """The ranks of one replica of a generator: they are asked the same, and the first one's answer counts."""

    agent: str
    first: int
    """Number of its first rank."""
    actors: tuple[Any, ...]
    ids: IntArray
    """Of the samples whose episodes it has."""


@dataclass(slots=True, eq=False)
class _Voice:
    of: Replica
    heard: list[Heard] = field(default_factory=list[Heard])
    """What it is to be asked."""
    under_way: int = 0
    flying: tuple[Any, ...] = ()
    """References of what it was asked last."""

    @property
    def busy(self) -> bool:
        return bool(self.heard or self.under_way)


class Afar:
    """`meeting`: number of the conversation; a rank does not answer for an earlier one."""

    def __init__(self, cast: Sequence[Replica], meeting: int, *, in_rounds: bool) -> None:
        self._voices = [_Voice(each) for each in cast]
        self._of = {(voice.of.agent, id): voice for voice in self._voices for id in voice.of.ids.tolist()}
        self._meeting = meeting
        self.in_rounds = in_rounds

    @property
    def busy(self) -> bool:
        return any(voice.busy for voice in self._voices)

    def ask(self, following: Next) -> None:
        for agent, heard in following.items():
            for each in heard:
                self._of[agent, each.id].heard.append(each)

    def said(self, *, wait: bool) -> dict[str, list[Said]]:
        import ray

        for voice in self._voices:
            if voice.busy and not voice.flying:
                heard, voice.heard = voice.heard, []
                voice.under_way += len(heard)
                voice.flying = tuple(actor.speak.remote(self._meeting, heard, STEPS) for actor in voice.of.actors)
        flying = {voice.flying[0]: voice for voice in self._voices if voice.flying}
        count, seconds = (len(flying), None) if self.in_rounds else (1, None if wait else POLL_SECONDS)
        ready, _ = ray.wait(list(flying), num_returns=count, timeout=seconds)
        found: dict[str, list[Said]] = {}
        for voice in (flying[reference] for reference in ready):
            said = self._heard_of(voice)
            voice.under_way -= len(said)
            found.setdefault(voice.of.agent, []).extend(said)
        return found

    def _heard_of(self, voice: _Voice) -> Sequence[Said]:
        import ray
        from ray.exceptions import RayError

        flying, voice.flying = voice.flying, ()
        failed: Exception | None = None
        for place, reference in enumerate(flying):
            try:
                if place and not ray.wait([reference], timeout=PEER_SECONDS)[0]:
                    continue
                outcome: Any = ray.get(reference)
            except RayError as error:
                told = RuntimeError(f"{type(error).__name__}: {error}")
                raise VoiceError(voice.of.agent, voice.of.first + place, told, gone=True) from error
            failed = failed or outcome.error
            if outcome.error is None and not place:
                return outcome.value
        assert failed is not None
        raise VoiceError(voice.of.agent, voice.of.first, failed, gone=False)


def replicas_of(agent: str, actors: Sequence[Any], replicas: Sequence[int], ids: Sequence[IntArray]) -> list[Replica]:
    """Of a generator, from what each of its ranks has: its replica, and its samples."""
    found: dict[int, list[int]] = {}
    for rank, replica in enumerate(replicas):
        found.setdefault(replica, []).append(rank)
    return [Replica(agent, ranks[0], tuple(actors[rank] for rank in ranks), ids[ranks[0]]) for ranks in found.values()]
