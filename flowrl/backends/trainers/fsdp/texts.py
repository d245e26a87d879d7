"""Token rows of texts, for losses that read prompt and response (sft). Knows no model."""

from __future__ import annotations

import numpy as np

from flowrl.backends.batch import Batch, Ragged
from flowrl.backends.contract import Call
from flowrl.backends.text import Codec
from flowrl.diag.diagnostic import FlowError, diagnose


def tokenised(batch: Batch, codec: Codec, call: Call) -> Batch:
    """Rows with `tokens` (prompt, response, eos) and `loss_mask` (response and eos), from `prompt` and `response`.

    Raises FlowError FR0817 for a response that is no text, and what `Codec.encode_prompts` raises.
    """
    span = call.op.span
    prompts = codec.encode_prompts(
        batch.objects("prompt"), batch.prompt_ids, max_tokens=call.max_prompt_tokens, on_long=call.on_long, span=span
    )
    texts: list[str] = []
    for text, prompt in zip(batch.objects("response"), batch.prompt_ids, strict=True):
        if not isinstance(text, str):
            raise FlowError(diagnose("FR0817", span, prompt=int(prompt), found=type(text).__name__))
        texts.append(text)
    responses = [np.append(ids, np.int32(codec.eos_id)) for ids in codec.encode_texts(texts, span)]
    tokens = [np.concatenate(pair) for pair in zip(prompts, responses, strict=True)]
    masks = [np.arange(len(row)) >= len(prompt) for row, prompt in zip(tokens, prompts, strict=True)]
    columns = {"tokens": Ragged.of(tokens, np.int32), "loss_mask": Ragged.of(masks, np.bool_)}
    return Batch(batch.ids, batch.prompt_ids, columns)
