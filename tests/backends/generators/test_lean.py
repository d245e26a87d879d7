"""The lean step beside the module's own forward pass, on the same tokens and caches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from flowrl.backends.generators import decode as decoding
from flowrl.backends.generators.cache import roomy_cache
from flowrl.backends.generators.decode import Ids, decode
from flowrl.backends.generators.lean import Lean
from flowrl.backends.generators.sampling import Sampling

SHAPE: dict[str, Any] = {
    "vocab_size": 37,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


def _made(kind: Any, config: Any) -> Any:
    torch.manual_seed(3)
    module = kind(config).eval().requires_grad_(False)
    for parameter in module.parameters():  # far from zero: also biases and norms
        parameter.add_(torch.randn_like(parameter) * 0.1)
    return module


MODULES = {
    "qwen2": lambda: _made(Qwen2ForCausalLM, Qwen2Config(**SHAPE, tie_word_embeddings=True)),
    "llama, wide heads": lambda: _made(
        LlamaForCausalLM, LlamaConfig(**SHAPE, head_dim=16, attention_bias=True, mlp_bias=True)
    ),
    "llama, scaled positions": lambda: _made(LlamaForCausalLM, LlamaConfig(**SHAPE, rope_parameters=LLAMA3_ROPE)),
    "llama, no shared heads": lambda: _made(LlamaForCausalLM, LlamaConfig(**{**SHAPE, "num_key_value_heads": 6})),
}


@pytest.mark.parametrize("padded", [False, True], ids=["even", "padded"])
@pytest.mark.parametrize("name", MODULES)
@torch.inference_mode()
def test_a_step_is_the_modules_own(name: str, padded: bool) -> None:
    module = MODULES[name]()
    lean = Lean.of(module)
    assert lean is not None
    rows, length = 5, 7
    draw = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 37, (rows, length + 4), generator=draw)
    missing = torch.tensor([0, 3, 1, 6, 2] if padded else [0] * rows)
    places = torch.arange(length + 4)[None] - missing[:, None]
    mask = places >= 0
    own, theirs = roomy_cache(module.config), roomy_cache(module.config)
    for cache in (own, theirs):
        module(
            input_ids=ids[:, :length],
            attention_mask=mask[:, :length] if padded else None,
            position_ids=places[:, :length].clamp(min=0),
            past_key_values=cache,
        )
    for place in range(length, length + 4):
        at, seen = places[:, place : place + 1], mask[:, : place + 1] if padded else None
        told = module(
            input_ids=ids[:, place : place + 1], attention_mask=seen, position_ids=at, past_key_values=theirs
        ).logits[:, -1]
        torch.testing.assert_close(lean.step(ids[:, place], at, seen, own), told, rtol=2e-5, atol=2e-5)
    for one, other in zip(own.layers, theirs.layers, strict=True):
        torch.testing.assert_close(one.keys, other.keys, rtol=2e-5, atol=2e-5)
        torch.testing.assert_close(one.values, other.values, rtol=2e-5, atol=2e-5)


def test_decoding_is_the_same_with_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts of several lengths, rows that end and leave the batch."""
    module = MODULES["qwen2"]()
    prompts = [np.asarray(prompt, dtype=np.int32) for prompt in ([3, 4, 5], [6, 7, 8, 9, 10], [11])]
    uniforms = np.random.default_rng(0).random((12, 20))

    def ends(tokens: Ids) -> Any:
        return tokens[:, -1] < 8

    with_it = decode(module, prompts, np.full(12, 20), uniforms, Sampling(), ends)
    monkeypatch.setattr(decoding.Lean, "of", lambda module: None)
    without = decode(module, prompts, np.full(12, 20), uniforms, Sampling(), ends)
    assert 1 < with_it.lengths.min() < with_it.lengths.max() or with_it.ended.any()
    assert np.array_equal(with_it.lengths, without.lengths)
    for row, length in enumerate(with_it.lengths):
        assert np.array_equal(with_it.tokens[row, :length], without.tokens[row, :length])
        np.testing.assert_allclose(with_it.log_probs[row, :length], without.log_probs[row, :length], atol=2e-5)


class _Adapted(nn.Linear):
    """As an adapter's layer: it does more than its weight says."""


def _with_adapter() -> Any:
    module = MODULES["qwen2"]()
    module.model.layers[1].mlp.up_proj = _Adapted(48, 80, bias=False)
    return module


@pytest.mark.parametrize(
    "make",
    [
        lambda: MODULES["qwen2"]().to(torch.bfloat16),
        lambda: _made(GPT2LMHeadModel, GPT2Config(vocab_size=37, n_embd=16, n_layer=1, n_head=2)),
        lambda: _made(MistralForCausalLM, MistralConfig(**SHAPE)),
        lambda: _made(
            Qwen2ForCausalLM,
            Qwen2Config(**SHAPE, use_sliding_window=True, sliding_window=4, max_window_layers=1),
        ),
        _with_adapter,
    ],
    ids=["bfloat16", "gpt2", "mistral", "windows", "adapter"],
)
def test_others_keep_their_own_forward_pass(make: Any) -> None:
    assert Lean.of(make()) is None
