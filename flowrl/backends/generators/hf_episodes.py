"""How the generator `hf` plays episodes: every turn that is asked for at once is one batch.

Takes what agents are to answer, gives what they say (backends/envs/turns.py). A turn is decoded from a cache made anew
of all the episode's tokens; its draws go on in the sample's own stream where its last turn stopped, so that an episode
of one turn is what `generate` makes of its prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from flowrl.backends.batch import Batch, IntArray
from flowrl.backends.contract import Call, RankSetup, Result
from flowrl.backends.envs.turns import Heard, Said
from flowrl.backends.generators.decode import Ends, decode
from flowrl.backends.generators.episodes import Episodes, Request
from flowrl.backends.generators.sampling import Sampling
from flowrl.backends.seeds import uniform_rows
from flowrl.backends.text import Codec
from flowrl.diag.diagnostic import InternalError
from flowrl.graph.params import GenerateParams


class _Engine(Protocol):
    """What the generator has."""

    _model: Any
    _codec: Codec
    _setup: RankSetup
    _version: int
    _episodes: Episodes | None
    _speaking: Call | None

    def _rows_at_once(self, longest: int) -> int: ...

    def _ends(self, stop: Sequence[str]) -> Ends: ...


class Speaks:
    """The part of HfGenerator that is a Speaker (envs/conversation.py)."""

    in_rounds = True
    _episodes: Episodes | None = None
    _speaking: Call | None = None

    def begin(self: _Engine, call: Call, ids: IntArray, prompts: Sequence[object] | None) -> None:
        """Episodes of the samples `ids`; `prompts`: what each is asked first, where no environment says it."""
        positions = getattr(self._model.config.get_text_config(), "max_position_embeddings", None)
        self._episodes, self._speaking = Episodes(call, self._codec, ids, prompts, positions), call

    def speak(self: _Engine, heard: Sequence[Heard], steps: int) -> list[Said]:
        """A turn in each of these episodes, all of them together."""
        episodes, call = self._episodes, self._speaking
        if episodes is None or call is None or not isinstance(call.op.params, GenerateParams):
            raise InternalError("no episodes have begun")
        torch.set_num_threads(self._setup.threads)
        params = call.op.params
        sampling = Sampling(params.temperature, params.top_p, params.top_k)
        requests, said = episodes.hear(heard)
        for together in _together(requests, self._rows_at_once):
            limits = np.asarray([each.limit for each in together], dtype=np.int64)
            prompts = [each.tokens for each in together]
            made = decode(self._model, prompts, limits, _draws(call, together), sampling, self._ends(params.stop))
            for row, each in enumerate(together):
                tokens = made.tokens[row, : made.lengths[row]].tolist()
                log_probs = made.log_probs[row, : made.lengths[row]].tolist()
                said.append(episodes.say(each.id, tokens, log_probs, ended=bool(made.ended[row])))
        return said

    def finish(self: _Engine, extra: Batch) -> Result:
        """Sample rows of the episodes, with the environment's columns."""
        if self._episodes is None:
            raise InternalError("no episodes have begun")
        episodes, self._episodes = self._episodes, None
        return episodes.finish(extra, self._version)


def _together(requests: Sequence[Request], at_once: Any) -> Iterator[Sequence[Request]]:
    """Turns whose caches fit together, those of like length beside each other."""
    left = sorted(requests, key=lambda each: (len(each.tokens), each.id))
    while left:
        size = at_once(max(len(each.tokens) + each.limit for each in left))
        yield left[:size]
        left = left[size:]


def _draws(call: Call, requests: Sequence[Request]) -> npt.NDArray[np.float64]:
    """Uniforms of each turn: float64 [turns, longest limit]."""
    ids = np.asarray([each.id for each in requests], dtype=np.int64)
    longest = max(each.limit for each in requests)
    rows = uniform_rows(call.seed, call.op.id, ids, longest + max(each.drawn for each in requests))
    return np.stack([row[each.drawn : each.drawn + longest] for row, each in zip(rows, requests, strict=True)])
