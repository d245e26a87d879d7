"""The session of generator `hf` that goes on from step to step: responses that are not done go on under newer weights.

Takes prompts as tokens and, with each gather, the model as it is then; gives sample rows. A gather begins with a cache
made anew of all tokens so far, so what was made before is kept and what follows is what the model of now would say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from flowrl.backends.batch import IntArray
from flowrl.backends.contract import LENGTH, STOP, Call, Gather, Result
from flowrl.backends.generators.decode import Ends, Ids, go_on
from flowrl.backends.generators.rollouts import Rollout, Rollouts, columns_of, metrics_of
from flowrl.backends.generators.sampling import Sampling
from flowrl.backends.seeds import uniform_rows
from flowrl.backends.text import Codec
from flowrl.graph.params import GenerateParams


class PartialRollouts:
    """`ends` sees the last tokens of one response; `at_once`: how many rows' caches fit together, by their longest."""

    def __init__(self, params: GenerateParams, codec: Codec, ends: Ends, at_once: Callable[[int], int]) -> None:
        self._sampling = Sampling(params.temperature, params.top_p, params.top_k)
        self._window = max([1, *(len(text.encode()) for text in params.stop)])
        self._codec, self._ends, self._at_once = codec, ends, at_once
        self._rollouts = Rollouts()
        self._uniforms: dict[int, npt.NDArray[np.float64]] = {}

    def join(self, call: Call, prompts: Sequence[Ids], ids: IntArray, limits: Sequence[int]) -> None:
        """Samples `ids` of prompts, each with its limit."""
        rows = uniform_rows(call.seed, call.op.id, ids, max(limits, default=0))
        joined = [
            Rollout(id, prompt.tolist(), limit) for id, prompt, limit in zip(ids.tolist(), prompts, limits, strict=True)
        ]
        self._uniforms |= {each.id: row for each, row in zip(joined, rows, strict=True)}
        self._rollouts.join(joined)

    def gather(self, model: Any, version: int, gather: Gather) -> Result:
        """As Carrying."""
        left, dropped, gone = self._rollouts.drop(gather)

        def made(rollout: Rollout, token: int, log_prob: float, ends: bool) -> bool:
            rollout.response.append(token)
            rollout.log_probs.append(log_prob)
            rollout.versions.append(version)
            if not ends and len(rollout.response) < rollout.limit:
                return False
            self._rollouts.finish(rollout, STOP if ends else LENGTH)
            return self._rollouts.has(left)

        while not self._rollouts.has(left) and (going := self._rollouts.going()):
            for together in self._together(going):
                rows = [self._uniforms[each.id] for each in together]
                go_on(model, together, rows, self._sampling, self._ends, self._window, made)
                if self._rollouts.has(left):
                    break
        taken = self._rollouts.take(left)
        for each in (*taken, *gone):
            del self._uniforms[each.id]
        return Result(columns_of(taken, self._codec), metrics_of(taken), dropped)

    def _together(self, going: Sequence[Rollout]) -> Iterator[Sequence[Rollout]]:
        """Those whose caches fit together, in the order in which they joined."""
        size = self._at_once(max(len(each.prompt) + each.limit for each in going))
        for start in range(0, len(going), size):
            yield going[start : start + size]
