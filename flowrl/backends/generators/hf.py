"""The generator `hf`: transformers in this process. Made for small models, for CPUs and as the yardstick of others.

Takes prompt rows, gives sample rows (LANGUAGE.md, generate). What a sample becomes depends on the weights, its prompt
and its own uniforms (seeds.py), never on the rows beside it, beyond float rounding. Weights enter in place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers.utils import logging as hf_logging

from flowrl.backends.batch import SAMPLE_ID_BITS, Batch, IntArray, Ragged, images_of, sample_ids
from flowrl.backends.contract import LENGTH, STOP, Bytes, Call, Gather, RankSetup, Result, TensorSpec
from flowrl.backends.generators.decode import Ends, Ids, Look, Responses, decode
from flowrl.backends.generators.hf_episodes import Speaks
from flowrl.backends.generators.partial import PartialRollouts
from flowrl.backends.generators.rollouts import percentile
from flowrl.backends.generators.sampling import Sampling
from flowrl.backends.lora import adapt, is_adapter
from flowrl.backends.models import load_lm, torch_dtype
from flowrl.backends.seeds import uniform_rows
from flowrl.backends.sight import look
from flowrl.backends.text import Codec
from flowrl.backends.weights import read_into
from flowrl.diag.diagnostic import FlowError, InternalError, diagnose
from flowrl.graph.graph import Op
from flowrl.graph.params import GenerateParams

CACHE_BYTES = 2 * 2**30
"""Most bytes of KV cache at once; prompts beyond it wait for the next round."""


class HfGenerator(Speaks):
    """One rank. Ranks share nothing: each generates its own rows."""

    def __init__(self, setup: RankSetup) -> None:
        if setup.model is None or setup.model_folder is None:
            raise InternalError(f"role `{setup.role.name}` has no model")
        hf_logging.disable_progress_bar()
        self._setup = setup
        self._codec = Codec(setup.model_folder, setup.model.span)
        arguments = {"dtype": torch_dtype(setup.model.dtype), "attn_implementation": "sdpa"} | setup.role.engine.extra
        self._model: Any = load_lm(setup.model_folder, **arguments)
        if setup.model.lora is not None:
            adapt(self._model, setup.model.lora, setup.seed, torch_dtype(setup.model.dtype))
        self._model.to(setup.device).eval().requires_grad_(False)
        _check_positions(setup, self._model.config.get_text_config())
        self._version = 0
        self._partial: PartialRollouts | None = None

    def call(self, call: Call, batch: Batch) -> Result:
        """generate: prompt rows × `samples_per_prompt` → sample rows."""
        torch.set_num_threads(self._setup.threads)
        params, prompts = self._asked(call, batch)
        ids = sample_ids(batch, call.samples_per_prompt)
        samples: list[_Sample] = []
        for part in self._parts(prompts, params, call.samples_per_prompt):
            own = ids[part.start * call.samples_per_prompt : part.stop * call.samples_per_prompt]
            samples += self._round(call, params, prompts[part], own, self._look(batch, part))
        return self._result(ids, np.repeat(batch.prompt_ids, call.samples_per_prompt), samples)

    def read_weights(self, manifest: Sequence[TensorSpec], buffer: Bytes, version: int) -> None:
        """Nothing runs between calls and no cache outlives one, so there is nothing to pause or to reset. Of a model
        with adapters these come alone: the base is the trainer's and stays as it is."""
        own = dict(self._model.named_parameters())
        adapters = {name: parameter for name, parameter in own.items() if is_adapter(name)}
        read_into(adapters or own, manifest, buffer)
        self._version = version

    def join(self, call: Call, batch: Batch, *, afresh: bool) -> None:
        """As Carrying."""
        if "images" in batch.columns:
            what = "`images` of a partial rollout of generator `hf`"
            raise FlowError(diagnose("FR0801", call.op.span, what=what, known="whole responses"))
        params, prompts = self._asked(call, batch)
        ids, samples = sample_ids(batch, call.samples_per_prompt), call.samples_per_prompt
        if afresh or self._partial is None:
            self._partial = PartialRollouts(params, self._codec, self._ends(params.stop), self._rows_at_once)
        limits = [
            _limit(params, len(prompt), prompt_id, call.op)
            for prompt, prompt_id in zip(prompts, batch.prompt_ids.tolist(), strict=True)
        ]
        each = np.repeat(np.arange(len(prompts)), samples).tolist()
        self._partial.join(call, [prompts[row] for row in each], ids, [limits[row] for row in each])

    def gather(self, gather: Gather) -> Result:
        """As Carrying."""
        if self._partial is None:
            raise InternalError("no session is open")
        torch.set_num_threads(self._setup.threads)
        return self._partial.gather(self._model, self._version, gather)

    def pause(self) -> None:
        """It only works while it is asked for rows."""

    def resume(self) -> None: ...

    def load(self) -> None:
        self._model.to(self._setup.device)

    def offload(self) -> None:
        self._model.to("cpu")

    def close(self) -> None:
        self._model = None

    def _asked(self, call: Call, batch: Batch) -> tuple[GenerateParams, list[Ids]]:
        """What a call of generate says, and its prompts as tokens."""
        params = call.op.params
        if call.op.method != "generate" or not isinstance(params, GenerateParams):
            raise InternalError(f"a generator has no op {call.op.method}")
        prompts = self._codec.encode_prompts(
            batch.objects("prompt"),
            batch.prompt_ids,
            images=images_of(batch),
            max_tokens=call.max_prompt_tokens,
            on_long=call.on_long,
            span=call.op.span,
        )
        return params, list(prompts)

    def _look(self, batch: Batch, part: slice) -> Look | None:
        """What the prompts of `part` see; None where no prompt of the call has an image."""
        images = images_of(batch)
        if images is None or not any(images):
            return None
        vision = self._codec.vision
        pixels = [vision.pixels(each) for each in images[part]]
        return lambda ids, own: look(self._model, vision, ids, own, pixels)

    def _rows_at_once(self, longest: int) -> int:
        """Rows of so many tokens whose caches fit together."""
        config = self._model.config.get_text_config()
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        token_bytes = 2 * config.num_hidden_layers * config.num_key_value_heads * head_dim * self._model.dtype.itemsize
        return max(1, CACHE_BYTES // (token_bytes * longest))

    def _parts(self, prompts: Sequence[Ids], params: GenerateParams, samples: int) -> Iterator[slice]:
        """Prompts whose caches fit together."""
        longest = max((len(prompt) for prompt in prompts), default=0) + params.max_response_tokens
        size = max(1, self._rows_at_once(longest) // samples)
        for start in range(0, len(prompts), size):
            yield slice(start, min(start + size, len(prompts)))

    def _round(
        self, call: Call, params: GenerateParams, prompts: Sequence[Ids], ids: IntArray, look: Look | None
    ) -> list[_Sample]:
        samples = len(ids) // len(prompts)
        limits = np.repeat(
            [
                _limit(params, len(prompt), int(first) >> SAMPLE_ID_BITS, call.op)
                for prompt, first in zip(prompts, ids[::samples], strict=True)
            ],
            samples,
        )
        responses = decode(
            self._model,
            prompts,
            limits,
            uniform_rows(call.seed, call.op.id, ids, int(limits.max())),
            Sampling(params.temperature, params.top_p, params.top_k),
            self._ends(params.stop),
            look,
        )
        return [_Sample.cut(prompts[row // samples], responses, row) for row in range(len(ids))]

    def _ends(self, stop: Sequence[str]) -> Ends:
        """Rows end at the eos token, or when their text holds a stop string."""
        # A token is one byte of text at least, so a stop string that has just been completed lies in so many tokens.
        window = max((len(text.encode()) for text in stop), default=0)

        def ends(tokens: Ids) -> npt.NDArray[np.bool_]:
            ended = tokens[:, -1] == self._codec.eos_id
            if not window:
                return ended
            texts = self._codec.decode_all(list(tokens[:, -window:]))
            return ended | np.asarray([any(s in text for s in stop) for text in texts], dtype=np.bool_)

        return ends

    def _result(self, ids: IntArray, prompt_ids: IntArray, samples: Sequence[_Sample]) -> Result:
        lengths = np.asarray([len(s.tokens) for s in samples], dtype=np.int64)
        finish = np.asarray([s.finish_reason for s in samples], dtype=np.int8)
        columns = {
            "tokens": Ragged.of([s.tokens for s in samples], np.int32),
            "loss_mask": Ragged.of([s.loss_mask for s in samples], np.bool_),
            "rollout_log_probs": Ragged.of([s.log_probs for s in samples], np.float32),
            "weight_version": Ragged(np.full(int(lengths.sum()), self._version, dtype=np.int32), lengths),
            "response": tuple(self._codec.decode_all([s.tokens[s.loss_mask] for s in samples])),
            "finish_reason": finish,
        }
        rows = len(samples)
        mean_tokens = float(sum(int(s.loss_mask.sum()) for s in samples)) / max(rows, 1)
        metrics = {
            "response_tokens": (mean_tokens, float(rows)),
            "response_tokens_p99": (percentile([int(s.loss_mask.sum()) for s in samples], 0.99), float(rows)),
            "truncated": (float((finish == LENGTH).sum()) / max(rows, 1), float(rows)),
        }
        return Result(Batch(ids, prompt_ids, columns), metrics)


@dataclass(frozen=True, slots=True)
class _Sample:
    """Prompt and response of one sample; all arrays have one length."""

    tokens: Ids
    loss_mask: npt.NDArray[np.bool_]
    log_probs: npt.NDArray[np.float32]
    finish_reason: int

    @staticmethod
    def cut(prompt: Ids, responses: Responses, row: int) -> _Sample:
        length = int(responses.lengths[row])
        mask = np.ones(len(prompt) + length, dtype=np.bool_)
        mask[: len(prompt)] = False
        log_probs = np.zeros(len(mask), dtype=np.float32)
        log_probs[len(prompt) :] = responses.log_probs[row, :length]
        tokens = np.concatenate([prompt, responses.tokens[row, :length]])
        return _Sample(tokens, mask, log_probs, STOP if responses.ended[row] else LENGTH)


def _check_positions(setup: RankSetup, config: Any) -> None:
    """Beyond its positions a model goes on without an error and writes rubbish."""
    positions, tokens = getattr(config, "max_position_embeddings", None), setup.max_tokens
    if positions is not None and tokens is not None and tokens > positions:
        role, over = setup.role, tokens - positions
        raise FlowError(diagnose("FR0840", role.span, role=role.name, tokens=tokens, positions=positions, over=over))


def _limit(params: GenerateParams, prompt_tokens: int, prompt: int, op: Op) -> int:
    """Most tokens of a response to a prompt of so many tokens."""
    limits = [params.max_response_tokens]
    if params.max_turn_tokens is not None:
        limits.append(params.max_turn_tokens)
    if params.max_context_tokens is not None:
        limits.append(params.max_context_tokens - prompt_tokens)
    if min(limits) < 1:
        facts = {"prompt": prompt, "tokens": prompt_tokens, "max_tokens": params.max_context_tokens}
        raise FlowError(diagnose("FR0832", op.spans.get("max_context_tokens", op.span), **facts))
    return min(limits)
