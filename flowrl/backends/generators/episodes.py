"""Episodes as a generator has them: tokens of its own turns and of what it hears between them. Token in, token out.

Takes what agents are to answer and what an engine makes of it; gives requests for the engine, texts for the environment
and, when all is over, sample rows. What the model said is never tokenised again: a turn's tokens stay as they were
sampled, and the increment that the chat template puts behind them (end of turn, new messages, start of the next turn)
is tokenised alone. `loss_mask` is true on own turns only, so that its runs of true are the turns. Knows no engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from flowrl.backends.batch import SAMPLE_ID_BITS, Batch, Column, IntArray, Ragged
from flowrl.backends.contract import LENGTH, STOP, Call, Metrics, Result
from flowrl.backends.envs.turns import Heard, Said
from flowrl.backends.generators.rollouts import percentile
from flowrl.backends.text import Codec, Ids
from flowrl.diag.diagnostic import FlowError, InternalError, diagnose
from flowrl.graph.params import GenerateParams


@dataclass(frozen=True, slots=True)
class Request:
    """A turn to sample."""

    id: int
    tokens: Ids
    """All of the episode so far."""
    limit: int
    """Most tokens of the turn."""
    drawn: int
    """Own tokens so far: the turn's first draw is that one of the sample's own stream of random numbers."""
    turn: int
    """Own turns so far."""


@dataclass(slots=True)
class _Episode:
    tokens: list[int] = field(default_factory=list[int])
    mask: list[bool] = field(default_factory=list[bool])
    log_probs: list[float] = field(default_factory=list[float])
    prompt: int = 0
    """Tokens before the first turn."""
    turns: int = 0
    drawn: int = 0
    asked: int = 0
    """The limit of the turn that is being sampled."""
    bound: bool = False
    """Whether that limit is the episode's, not the turn's."""
    ended: bool = True
    """Whether the newest turn came to an end of its own."""
    cut: bool = False


class Episodes:
    """Those of one call on one rank: samples `ids`, with what each is asked first where no environment says it."""

    def __init__(
        self, call: Call, codec: Codec, ids: IntArray, prompts: Sequence[object] | None, positions: int | None = None
    ) -> None:
        """`positions`: tokens that the engine or the model can have at most."""
        params = call.op.params
        if call.op.method != "generate" or not isinstance(params, GenerateParams):
            raise InternalError(f"a generator has no op {call.op.id}")
        self._call, self._codec, self._params = call, codec, params
        self._ids = ids
        self._prompts = dict(zip(ids.tolist(), prompts, strict=True)) if prompts is not None else {}
        self._episodes = {id: _Episode() for id in ids.tolist()}
        most = None if call.max_prompt_tokens is None else call.max_prompt_tokens + params.max_response_tokens
        self._context = min((n for n in (params.max_context_tokens, most, positions) if n is not None), default=None)

    def hear(self, heard: Sequence[Heard]) -> tuple[list[Request], list[Said]]:
        """Turns to sample, and what has no room for one."""
        requests: list[Request] = []
        done: list[Said] = []
        for each, tokens in zip(heard, self._tokens(heard), strict=True):
            episode = self._episodes[each.id]
            limit = self._limit(episode, len(tokens))
            if limit < 1:
                episode.cut = True
                done.append(Said(each.id, None))
                continue
            episode.tokens += tokens.tolist()
            episode.mask += [False] * len(tokens)
            episode.log_probs += [0.0] * len(tokens)
            if not episode.turns:
                episode.prompt = len(episode.tokens)
            episode.asked = limit
            episode.bound = limit != self._params.max_turn_tokens
            context = np.asarray(episode.tokens, dtype=np.int32)
            requests.append(Request(each.id, context, limit, episode.drawn, episode.turns))
        return requests, done

    def say(self, id: int, tokens: Sequence[int], log_probs: Sequence[float], *, ended: bool) -> Said:
        """Take in a turn that was sampled; `ended`: by its end token or a stop text. Gives it as text."""
        episode = self._episodes[id]
        episode.tokens += list(tokens)
        episode.mask += [True] * len(tokens)
        episode.log_probs += list(log_probs)
        episode.turns += 1
        episode.drawn += len(tokens)
        episode.ended = ended
        episode.cut = not ended and episode.bound
        return Said(id, self._codec.decode(np.asarray(tokens, dtype=np.int32)))

    def finish(self, extra: Batch, version: int) -> Result:
        """Sample rows with the columns of `extra` (the environment's): those of its ids that are ours."""
        mine = np.flatnonzero(np.isin(extra.ids, self._ids))
        left = extra.select(mine)
        rows = [self._episodes[id] for id in left.ids.tolist()]
        tokens = [row.tokens or [self._codec.eos_id] for row in rows]  # one that never spoke; a row needs a token
        lengths = [len(each) for each in tokens]
        finish = np.asarray([LENGTH if row.cut else STOP for row in rows], dtype=np.int8)
        own = [np.asarray(row.tokens, dtype=np.int32)[np.asarray(row.mask, dtype=np.bool_)] for row in rows]
        columns: dict[str, Column] = {
            "tokens": Ragged.of([np.asarray(each) for each in tokens], np.int32),
            "loss_mask": Ragged.of([np.asarray(row.mask or [False]) for row in rows], np.bool_),
            "rollout_log_probs": Ragged.of([np.asarray(row.log_probs or [0.0]) for row in rows], np.float32),
            "weight_version": Ragged.of([np.full(n, version) for n in lengths], np.int32),
            "response": tuple(self._codec.decode_all(own)),
            "finish_reason": finish,
        }
        batch = Batch(left.ids, left.ids >> SAMPLE_ID_BITS, columns | dict(left.columns))
        return Result(batch, _metrics(own, lengths, finish))

    def _tokens(self, heard: Sequence[Heard]) -> list[Ids]:
        """What is heard, as tokens: a prompt for the first turn of each agent, else the increment."""
        whole = {each.id: each for each in heard if not self._episodes[each.id].turns}
        first = self._encoded([each for each in whole.values() if each.first], self._call.max_prompt_tokens)
        known = first | self._encoded([each for each in whole.values() if not each.first], None)
        return [known[each.id] if each.id in known else self._increment(each) for each in heard]

    def _encoded(self, heard: Sequence[Heard], max_tokens: int | None) -> dict[int, Ids]:
        tokens = self._codec.encode_prompts(
            [self._prompts[each.id] if each.observation is None else each.observation for each in heard],
            [each.id >> SAMPLE_ID_BITS for each in heard],
            max_tokens=max_tokens,
            on_long=self._call.on_long,
            span=self._call.op.span,
        )
        return {each.id: ids for each, ids in zip(heard, tokens, strict=True)}

    def _increment(self, each: Heard) -> Ids:
        episode = self._episodes[each.id]
        closed = bool(episode.tokens) and episode.tokens[-1] == self._codec.eos_id
        tokens = self._codec.encode_increment(each.observation or "", closed=closed, span=self._call.op.span)
        if not len(tokens):
            prompt = each.id >> SAMPLE_ID_BITS
            sample = each.id - (prompt << SAMPLE_ID_BITS)
            raise FlowError(diagnose("FR0864", self._call.op.span, sample=sample, prompt=prompt))
        return tokens

    def _limit(self, episode: _Episode, heard: int) -> int:
        """Most tokens of the next turn, after so many that are heard."""
        params = self._params
        since = len(episode.tokens) - episode.prompt + heard if episode.turns else 0
        limits = [params.max_response_tokens - since]
        if params.max_turn_tokens is not None:
            limits.append(params.max_turn_tokens)
        if self._context is not None:
            limits.append(self._context - len(episode.tokens) - heard)
        return min(limits)


def _metrics(own: Sequence[Ids], lengths: Sequence[int], finish: np.ndarray) -> Metrics:
    rows = len(own)
    if not rows:
        return {}
    counts = [len(each) for each in own]
    return {
        "response_tokens": (sum(counts) / rows, float(rows)),
        "response_tokens_p99": (percentile(counts, 0.99), float(rows)),
        "episode_tokens": (sum(lengths) / rows, float(rows)),
        "truncated": (float((finish == LENGTH).mean()), float(rows)),
    }
