"""Rollouts: responses under way in a session that goes on from step to step, each token tagged with its version.

Takes tokens as an engine makes them; gives sample rows (LANGUAGE.md, generate). Knows no engine and no weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from flowrl.backends.batch import SAMPLE_ID_BITS, Batch, Ragged
from flowrl.backends.carried import Groups, without
from flowrl.backends.contract import LENGTH, Gather, Metrics
from flowrl.backends.text import Codec


@dataclass(slots=True, eq=False)
class Rollout:
    """One sample. `response`, `log_probs` and `versions` have one entry a token so far."""

    id: int
    prompt: list[int]
    limit: int
    """Most tokens of the response."""
    response: list[int] = field(default_factory=list[int])
    log_probs: list[float] = field(default_factory=list[float])
    """Of each token under the weights that it was made with."""
    versions: list[int] = field(default_factory=list[int])
    finish_reason: int | None = None
    """None while it goes on."""

    @property
    def prompt_id(self) -> int:
        return self.id >> SAMPLE_ID_BITS

    def oldest(self) -> int | None:
        """The version of its first token."""
        return self.versions[0] if self.versions else None


class Rollouts:
    """Those of one rank."""

    def __init__(self) -> None:
        self._groups: Groups[Rollout] = Groups()

    def join(self, rollouts: Sequence[Rollout]) -> None:
        by_prompt: dict[int, list[Rollout]] = {}
        for rollout in rollouts:
            by_prompt.setdefault(rollout.prompt_id, []).append(rollout)
        for prompt, rows in by_prompt.items():
            self._groups.add(prompt, rows)

    def going(self) -> list[Rollout]:
        """Those that are not done, in the order in which they joined."""
        return [each for each in self._groups.rows() if each.finish_reason is None]

    def finish(self, rollout: Rollout, reason: int) -> None:
        rollout.finish_reason = reason
        self._groups.finish(rollout.prompt_id)

    def drop(self, gather: Gather) -> tuple[Gather, tuple[int, ...], list[Rollout]]:
        """Leave out what is too old: what is still to be given, the prompts that were dropped, and their rollouts."""
        dropped = self._groups.too_old(gather, Rollout.oldest)
        return without(gather, dropped), dropped, self._groups.pop(dropped)

    def has(self, gather: Gather) -> bool:
        """Whether a take can give what it must."""
        return self._groups.choice(gather) is not None

    def take(self, gather: Gather) -> list[Rollout]:
        """What it gives, in the order of ids."""
        return sorted(self._groups.pop(self._groups.choice(gather) or ()), key=lambda rollout: rollout.id)


class Made(Protocol):
    """A response, whoever made it."""

    @property
    def response(self) -> Sequence[int]: ...

    @property
    def finish_reason(self) -> int | None: ...


def metrics_of(made: Sequence[Made]) -> Metrics:
    count = len(made)
    if not count:
        return {}
    tokens = sum(len(each.response) for each in made)
    truncated = sum(each.finish_reason == LENGTH for each in made)
    return {
        "response_tokens": (tokens / count, float(count)),
        "response_tokens_p99": (percentile([len(each.response) for each in made], 0.99), float(count)),
        "truncated": (truncated / count, float(count)),
    }


def percentile(lengths: Sequence[int], share: float) -> float:
    """The length that a share of them does not exceed; 0 for none."""
    return float(np.quantile(np.asarray(lengths), share)) if lengths else 0.0


def columns_of(rollouts: Sequence[Rollout], codec: Codec) -> Batch:
    """Sample rows. The prompt's tokens have the version of the first token of the response."""
    ids = np.asarray([each.id for each in rollouts], dtype=np.int64)
    before = [len(each.prompt) for each in rollouts]
    whole = [len(each.prompt) + len(each.response) for each in rollouts]
    columns = {
        "tokens": Ragged.of([np.asarray(each.prompt + each.response) for each in rollouts], np.int32),
        "loss_mask": Ragged.of([np.arange(n) >= first for n, first in zip(whole, before, strict=True)], np.bool_),
        "rollout_log_probs": Ragged.of(
            [np.asarray([0.0] * len(each.prompt) + each.log_probs) for each in rollouts], np.float32
        ),
        "weight_version": Ragged.of(
            [np.asarray(each.versions[:1] * len(each.prompt) + each.versions) for each in rollouts], np.int32
        ),
        "response": tuple(codec.decode_all([np.asarray(each.response, dtype=np.int32) for each in rollouts])),
        "finish_reason": np.asarray([each.finish_reason for each in rollouts], dtype=np.int8),
    }
    return Batch(ids, ids >> SAMPLE_ID_BITS, columns)
