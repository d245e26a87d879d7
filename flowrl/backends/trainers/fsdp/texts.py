"""Token rows of texts, for ops that read prompt and response: sft, and log-probs, values and losses of given responses.
Knows no model."""

from __future__ import annotations

import numpy as np

from flowrl.backends.batch import Batch, Ragged, images_of
from flowrl.backends.contract import Call, RankSetup
from flowrl.backends.text import Codec
from flowrl.diag.diagnostic import FlowError, diagnose


class Texts:
    """Makes tokens where an op reads text; the tokenizer is loaded when it first does."""

    def __init__(self, setup: RankSetup) -> None:
        self._setup = setup
        self._codec: Codec | None = None

    def with_tokens(self, call: Call, batch: Batch) -> Batch:
        """`batch`, or what `tokenised` makes of it if it has responses as text alone."""
        if "response" not in batch.columns or "tokens" in batch.columns or "latents" in batch.columns:
            return batch
        if self._codec is None:
            assert self._setup.model_folder is not None
            self._codec = Codec(self._setup.model_folder, self._setup.model and self._setup.model.span)
        return tokenised(batch, self._codec, call)


def tokenised(batch: Batch, codec: Codec, call: Call) -> Batch:
    """Rows with `tokens` (prompt, response, eos) and `loss_mask` (response and eos), from `prompt` and `response`; the
    other columns stay. The same text gives the same tokens to every role with the same tokenizer.

    Raises FlowError FR0817 for a response that is no text, and what `Codec.encode_prompts` raises.
    """
    span = call.op.span
    prompts = codec.encode_prompts(
        batch.objects("prompt"),
        batch.prompt_ids,
        images=images_of(batch),
        max_tokens=call.max_prompt_tokens,
        on_long=call.on_long,
        span=span,
    )
    texts: list[str] = []
    for text, prompt in zip(batch.objects("response"), batch.prompt_ids, strict=True):
        if not isinstance(text, str):
            raise FlowError(diagnose("FR0817", span, prompt=int(prompt), found=type(text).__name__))
        texts.append(text)
    responses = [np.append(ids, np.int32(codec.eos_id)) for ids in codec.encode_texts(texts, span)]
    tokens = [np.concatenate(pair) for pair in zip(prompts, responses, strict=True)]
    masks = [np.arange(len(row)) >= len(prompt) for row, prompt in zip(tokens, prompts, strict=True)]
    columns = {name: column for name, column in batch.columns.items() if name not in ("prompt", "response")}
    columns |= {"tokens": Ragged.of(tokens, np.int32), "loss_mask": Ragged.of(masks, np.bool_)}
    return Batch(batch.ids, batch.prompt_ids, columns)
