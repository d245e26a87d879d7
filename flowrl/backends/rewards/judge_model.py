"""The model of a judge in this process: any generator backend that answers texts.

Takes requests with ids, gives texts. The generator samples with seeds of the ids, so neither batches nor ranks change
an answer.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from msgspec import structs

from flowrl.backends.batch import Batch, IntArray
from flowrl.backends.contract import Call, RankSetup
from flowrl.graph.params import GenerateParams

GENERATORS: Mapping[str, str] = {
    "hf": "flowrl.backends.generators.hf:HfGenerator",
    "vllm": "flowrl.backends.generators.vllm:VllmGenerator",
}
"""Backends of a judge with a model of its own."""
MAX_RESPONSE_TOKENS = 256
_OWN = frozenset(GenerateParams.__struct_fields__) - {"extra", "samples_per_prompt"}


class JudgeModel:
    """One rank. Other tensor-parallel ranks than an engine's first give no texts."""

    def __init__(self, setup: RankSetup) -> None:
        module, _, name = GENERATORS[setup.role.backend or ""].partition(":")
        # The longest sample of the flow is the policy's, not the judge's.
        own = replace(setup, max_tokens=setup.role.engine.max_model_tokens)
        self.engine: Any = getattr(importlib.import_module(module), name)(own)

    def ask(self, call: Call, requests: Sequence[str], ids: IntArray, prompt_ids: IntArray) -> list[str] | None:
        if not len(ids):
            return []
        params = generate_params(getattr(call.op.params, "sampling", {}))
        asked = replace(call, op=structs.replace(call.op, method="generate", params=params), samples_per_prompt=1)
        asked = replace(asked, max_prompt_tokens=None, joins=None)
        made = self.engine.call(asked, Batch(ids, prompt_ids, {"prompt": tuple(requests)})).batch
        if made is None:
            return None
        order = np.searchsorted(made.ids, ids)
        texts = made.objects("response")
        return [f"{texts[place]}" for place in order.tolist()]


def generate_params(sampling: Mapping[str, Any]) -> GenerateParams:
    """The keys of `generate` that the flow gives the judge, greedy unless it says otherwise."""
    given = {key: value for key, value in sampling.items() if key in _OWN and value is not None}
    given["stop"] = tuple(given.get("stop", ()))
    return GenerateParams(**{"max_response_tokens": MAX_RESPONSE_TOKENS, "temperature": 0.0, **given})
