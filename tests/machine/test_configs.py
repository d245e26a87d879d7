"""Cards against config.json files of the hub, and what is kept and computed of a sequence against papers.

The configurations are those of hub.py; where transformers' default configuration is the model's, that one is taken.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pytest
import transformers

from flowrl.machine.config import shape_of_config
from flowrl.machine.models import CARDS, card_entries
from flowrl.machine.shape import ModelShape
from tests.machine.hub import HUB

DEFAULTS = {
    "deepseek_v3": "deepseek-ai/DeepSeek-V3",
    "gemma": "google/gemma-7b",
    "gemma2": "google/gemma-2-2b",
    "glm4_moe_lite": "zai-org/GLM-4.7-Flash",
    "gpt_oss": "openai/gpt-oss-120b",
    "opt": "facebook/opt-125m",
    "qwen3_next": "Qwen/Qwen3-Next-80B-A3B-Instruct",
}
"""Architectures whose default configuration in transformers is that of a model."""


def bare(shape: ModelShape) -> ModelShape:
    """Without what differs between the ids of one card."""
    return dataclasses.replace(shape, name="", origin="", max_positions=0)


@pytest.mark.parametrize("name", HUB)
def test_a_card_is_the_shape_of_its_configuration(name: str) -> None:
    assert bare(shape_of_config(HUB[name], path="config.json")) == bare(CARDS[name])


@pytest.mark.parametrize("architecture", DEFAULTS)
def test_a_card_is_the_shape_of_the_default_configuration(architecture: str) -> None:
    config = transformers.AutoConfig.for_model(architecture).to_dict()
    assert bare(shape_of_config(config, path="config.json")) == bare(CARDS[DEFAULTS[architecture]])


# -- what is kept of a sequence ---------------------------------------------------------------------------------------


def test_latents_are_cached_as_the_paper_counts() -> None:
    """DeepSeek-V2 (arXiv:2405.04434), table 1: (d_c + d_h^R) * l elements a token, d_c = 4 d_h and d_h^R = d_h / 2, so
    9/2 d_h l; d_h = 128. DeepSeek-V3 technical insights (arXiv:2505.09343), table 1: 70.272 KB a token in BF16."""
    v2 = CARDS["deepseek-ai/DeepSeek-V2"]
    assert v2.kv_bytes_per_token(2) == 2 * 9 * 128 * 60 // 2
    v3 = CARDS["deepseek-ai/DeepSeek-V3"]
    assert v3.kv_bytes_per_token(2) == 70_272
    assert v3.kv_bytes_per_token(2, tp=8) == 70_272, "each device holds the whole latent"
    assert "(512 + 64) of the latent" in v3.cache_words(2)


def test_other_models_of_that_table() -> None:
    """arXiv:2505.09343, table 1: Qwen-2.5 72B 327.680 KB, LLaMA-3.1 405B 516.096 KB a token."""
    assert CARDS["Qwen/Qwen2.5-72B"].kv_bytes_per_token(2) == 327_680
    assert CARDS["meta-llama/Llama-3.1-405B"].kv_bytes_per_token(2) == 516_096


def test_windows_bound_what_is_kept() -> None:
    """Gemma 3 (arXiv:2503.19786), section 2 and figure 6: 5 layers of 6 keep 1,024 tokens, so at 32k the cache is less
    than a fifth of one that keeps all. GPT-OSS: every other layer keeps 128."""
    gemma = CARDS["google/gemma-3-27b-it"]
    everything = gemma.kv_bytes_per_token(2) * 32_768
    assert (gemma.full_layers, gemma.windowed_layers) == (10, 52)
    assert gemma.cache_bytes(32_768, 2) == 2 * 2 * 16 * 128 * (10 * 32_768 + 52 * 1024)
    assert gemma.cache_bytes(32_768, 2) < everything / 5
    assert gemma.cache_bytes(1024, 2) == gemma.kv_bytes_per_token(2) * 1024, "nothing is cut within a window"
    oss = CARDS["openai/gpt-oss-120b"]
    assert oss.cache_bytes(131_072, 2) == 2 * 2 * 8 * 64 * (18 * 131_072 + 18 * 128)


def test_recurrent_layers_keep_a_state() -> None:
    """Qwen3-Next: 12 of 48 layers cache 2 heads of 256; 36 keep 32 matrices of 128 * 128 and 3 columns of a convolution
    over 2 * 16 * 128 + 32 * 128 channels, whatever the length."""
    shape = CARDS["Qwen/Qwen3-Next-80B-A3B-Instruct"]
    assert shape.kv_bytes_per_token(2) == 12 * 2 * 2 * 256 * 2
    state = 36 * (32 * 128 * 128 + 3 * 8192) * 2
    assert shape.state_bytes(2) == state
    assert shape.cache_bytes(1000, 2) == 1000 * shape.kv_bytes_per_token(2) + state
    assert shape.state_bytes(2, tp=4) == state / 4
    nano = CARDS["nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"]
    assert nano.kv_bytes_per_token(2) == 6 * 2 * 2 * 128 * 2
    assert nano.state_bytes(2) == 23 * (64 * 64 * 128 * 4 + 3 * 6144 * 2), "its state is in 32 bits"


def test_a_dense_model_keeps_all() -> None:
    shape = CARDS["meta-llama/Llama-3.1-8B"]
    assert shape.state_bytes(2) == 0
    assert shape.cache_bytes(777, 2, tp=2) == 777 * shape.kv_bytes_per_token(2, tp=2)


# -- FLOPs ------------------------------------------------------------------------------------------------------------


def test_flops_of_training_by_megatrons_formula() -> None:
    """Narayanan et al. 2021 (arXiv:2104.04473), equation 3, of a GPT with a feed-forward of 4 h in two matrices:
    72 B s l h^2 (1 + s / 6h + V / 12 l h), forward and backward, each token attending to s tokens."""
    h, layers, s, vocab = 1024, 6, 2048, 50_000
    shape = ModelShape(
        name="gpt",
        origin="test",
        architecture="opt",
        layers=layers,
        hidden=h,
        heads=16,
        kv_heads=16,
        head_dim=64,
        ffn=4 * h,
        ffn_matrices=2,
        vocab=vocab,
        max_positions=s,
        tied=True,
    )
    norms = (2 * layers + 1) * h
    ours = 3 * s * (2 * (shape.multiplied_parameters - norms) + shape.attention_flops(s))
    assert ours == pytest.approx(72 * s * layers * h * h * (1 + s / (6 * h) + vocab / (12 * layers * h)), rel=1e-12)


def test_flops_of_training_a_token_as_published() -> None:
    """arXiv:2505.09343, table 2: training at 4,096 tokens, causal, costs 250 GFLOPs a token for DeepSeek-V3, 155 for
    DeepSeek-V2 and 2,448 for LLaMA-3.1 405B. (Its 394 for Qwen-2.5 72B is left out: it is less than 6 * 70.2e9, the
    weights of that model's layers alone.)"""
    published = {
        "deepseek-ai/DeepSeek-V3": 250,
        "deepseek-ai/DeepSeek-V2": 155,
        "meta-llama/Llama-3.1-405B": 2448,
    }
    for name, giga in published.items():
        shape = CARDS[name]
        per_token = 3 * (2 * shape.multiplied_parameters + shape.causal_flops(4096) / 4096)
        assert per_token / 1e9 == pytest.approx(giga, rel=0.011), name


@pytest.mark.parametrize(
    "name", ["Qwen/Qwen3-8B", "google/gemma-3-4b-it", "Qwen/Qwen3.5-9B", "moonshotai/Moonlight-16B-A3B"]
)
@pytest.mark.parametrize("tokens", [1, 5, 1023, 1024, 1025, 3000])
def test_flops_of_a_sequence_are_those_of_its_tokens(name: str, tokens: int) -> None:
    shape = CARDS[name]
    assert shape.causal_flops(tokens) == pytest.approx(sum(shape.attention_flops(at + 1) for at in range(tokens)))


def test_decoding_latents_costs_more_flops_and_less_memory() -> None:
    """arXiv:2405.04434, section 2.1.2: keys and values are absorbed, so a query of 576 meets each token's latent."""
    shape = CARDS["deepseek-ai/DeepSeek-V3"]
    assert shape.attention_flops(1) == 61 * 2 * 128 * (192 + 128)
    assert shape.attention_flops(1, decode=True) == 61 * 2 * 128 * (576 + 512)


# -- parts ------------------------------------------------------------------------------------------------------------

GPT_OSS: Mapping[str, Mapping[str, float]] = {
    "openai/gpt-oss-120b": {"experts": 114.71, "attention": 0.96, "embeddings": 1.16, "all": 116.83},
    "openai/gpt-oss-20b": {"experts": 19.12, "attention": 0.64, "embeddings": 1.16, "all": 20.91},
}
"""gpt-oss model card (arXiv:2508.10925), table 1, in billions: MLP, attention, embedding and unembedding, total."""


@pytest.mark.parametrize("name", GPT_OSS)
def test_parts_of_a_mixture_as_published(name: str) -> None:
    shape, told = CARDS[name], GPT_OSS[name]
    routers = shape.sparse_layers * shape.shared_parameters
    assert (shape.expert_parameters_total + routers) / 1e9 == pytest.approx(told["experts"], abs=0.005)
    assert shape.attention_parameters_total / 1e9 == pytest.approx(told["attention"], abs=0.005)
    assert (shape.embedding_parameters + shape.head_parameters) / 1e9 == pytest.approx(told["embeddings"], abs=0.005)
    assert shape.parameters / 1e9 == pytest.approx(told["all"], abs=0.005)


SHAPES = {entry["names"][0]: CARDS[entry["names"][0]] for entry in card_entries() if entry.get("head") != "denoiser"}


@pytest.mark.parametrize("name", SHAPES)
def test_parts_add_up(name: str) -> None:
    shape = SHAPES[name]
    inside = sum(layers * each for _, layers, each in shape.layer_kinds)
    assert inside + shape.root_parameters == shape.parameters
    assert shape.expert_parameters_total + shape.shared_parameters_total == shape.parameters
    assert inside / shape.layers <= shape.layer_parameters
    assert shape.multiplied_parameters <= shape.active_parameters <= shape.parameters
    assert shape.sparse_layers + shape.dense_feed_forwards == (shape.feed_forwards or shape.layers)
    assert shape.full_layers + shape.windowed_layers + shape.linear_layers == (shape.mixers or shape.layers)
