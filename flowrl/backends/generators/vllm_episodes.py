"""How the generator `vllm` plays episodes: a turn is a request, and turns are handed on as they are done.

Takes what agents are to answer, gives what they say (backends/envs/turns.py); the engine works on other episodes
meanwhile. A turn's prompt is all of the episode so far, of which the engine's prefix cache still holds most. The seed
of a turn is made of the sample and the turn's number; a first turn is what `generate` makes of its prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from flowrl.backends.batch import Batch, IntArray
from flowrl.backends.contract import Call, RankSetup, Result
from flowrl.backends.envs.turns import Heard, Said
from flowrl.backends.generators.episodes import Episodes
from flowrl.backends.generators.vllm_requests import Sample
from flowrl.backends.seeds import sample_seed
from flowrl.backends.text import Codec
from flowrl.diag.diagnostic import InternalError
from flowrl.graph.params import GenerateParams


class _Engine(Protocol):
    """What the generator has."""

    _setup: RankSetup
    _codec: Codec
    _engine: Any
    _context: int
    _version: int
    _episodes: Episodes | None
    _speaking: Call | None
    _turns: dict[str, Sample]

    def fall_silent(self) -> None: ...

    def _params(self, call: Call) -> GenerateParams: ...

    def _require_ready(self) -> None: ...

    def _prepare(self, params: GenerateParams) -> None: ...

    def _request(self, name: str, sample: Sample, params: GenerateParams, seed: int, limit: int) -> None: ...

    def _finished(self, stop: Sequence[str], waiting: dict[str, Sample]) -> list[str]: ...

    def _breaking(self, what: str) -> AbstractContextManager[None]: ...


class Speaks:
    """The part of VllmGenerator that is a Speaker (envs/conversation.py)."""

    in_rounds = False
    _episodes: Episodes | None = None
    _speaking: Call | None = None
    _turns: dict[str, Sample]

    def begin(self: _Engine, call: Call, ids: IntArray, prompts: Sequence[object] | None) -> None:
        """Episodes of the samples `ids`; `prompts`: what each is asked first, where no environment says it."""
        params = self._params(call)
        self._require_ready()
        self.fall_silent()
        self._episodes, self._speaking = Episodes(call, self._codec, ids, prompts, self._context), call
        self._prepare(params)

    def fall_silent(self: _Engine) -> None:
        """Leave off episodes that are half done: those of a call that will be made again."""
        if self._turns:
            self._engine.abort_request(list(self._turns), internal=False)
        self._episodes, self._turns = None, {}

    def speak(self: _Engine, heard: Sequence[Heard], steps: int) -> list[Said]:
        """Begin a turn in each of these episodes; gives turns that are done, as soon as there is one. Counted in steps
        of the engine, not in seconds: the ranks of an engine take the same ones."""
        episodes, call = self._episodes, self._speaking
        if episodes is None or call is None:
            raise InternalError("no episodes have begun")
        params = self._params(call)
        requests, said = episodes.hear(heard)
        with self._breaking("generation"):
            for each in requests:
                name = f"{each.id}/{each.turn}"
                label = call.op.id if not each.turn else f"{call.op.id}/{each.turn}"
                self._turns[name] = Sample(each.id, each.tokens.tolist())
                self._request(name, self._turns[name], params, sample_seed(call.seed, label, each.id), each.limit)
            for _ in range(steps):
                if said or not self._turns:
                    break
                for name in self._finished(params.stop, self._turns):
                    turn = self._turns.pop(name)
                    said.append(episodes.say(turn.id, turn.response, turn.log_probs, ended=turn.ended))
        return said

    def finish(self: _Engine, extra: Batch) -> Result:
        """Sample rows of the episodes, with the environment's columns; of an engine of several ranks its first's."""
        if self._episodes is None or self._turns:
            raise InternalError("no episodes have begun, or turns are under way")
        episodes, self._episodes = self._episodes, None
        return Result(None, {}) if self._setup.rank % self._setup.layout.tp else episodes.finish(extra, self._version)
