"""Architectures counted as transformers counts them: its modules on the meta device are the second implementation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from flowrl.diag.diagnostic import FlowError
from flowrl.machine.adapter import widths
from flowrl.machine.config import ARCHITECTURES, shape_of_config

DECODER = {
    "vocab_size": 160,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
}
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
ROUTED = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
SHARED = {"shared_expert_intermediate_size": 32}
LINEAR = {
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
}
LATENT = {
    **ROUTED,
    "n_group": 2,
    "topk_group": 1,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "num_key_value_heads": 4,
}
MAMBA = {
    **ROUTED,
    "layers_block_type": ["mamba", "moe", "attention", "mlp"],
    "mamba_num_heads": 4,
    "mamba_head_dim": 16,
    "n_groups": 2,
    "ssm_state_size": 8,
    "moe_shared_expert_intermediate_size": 40,
    "head_dim": 16,
}
OPT = {"ffn_dim": 96, "num_key_value_heads": 4}
DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "smollm3": ("smollm3", {}),
    "ministral, three windows of four": (
        "ministral",
        {"head_dim": 32, "sliding_window": 8, "layer_types": ["sliding_attention"] * 3 + ["full_attention"]},
    ),
    "qwen2_moe, every second layer dense": ("qwen2_moe", {**EXPERTS, **SHARED, "decoder_sparse_step": 2}),
    "qwen2_moe, named layers dense": ("qwen2_moe", {**EXPERTS, **SHARED, "mlp_only_layers": [0]}),
    "qwen3_next": ("qwen3_next", {**EXPERTS, **SHARED, **LINEAR}),
    "qwen3_5_text": ("qwen3_5_text", LINEAR),
    "qwen3_5_moe_text": ("qwen3_5_moe_text", {**EXPERTS, **SHARED, **LINEAR}),
    "deepseek_v2": ("deepseek_v2", LATENT),
    "deepseek_v3": ("deepseek_v3", LATENT),
    "deepseek_v3, queries without a latent": ("deepseek_v3", {**LATENT, "q_lora_rank": None}),
    "glm4": ("glm4", {"attention_bias": True, "head_dim": 16}),
    "glm4_moe": (
        "glm4_moe",
        {**ROUTED, "attention_bias": True, "use_qk_norm": True, "n_shared_experts": 1, "head_dim": 32},
    ),
    "glm4_moe_lite": ("glm4_moe_lite", LATENT),
    "gpt_oss": ("gpt_oss", {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 32, "sliding_window": 8}),
    "gemma": ("gemma", {"head_dim": 32}),
    "gemma2": ("gemma2", {"head_dim": 32}),
    "gemma3_text": ("gemma3_text", {"head_dim": 32}),
    "opt": ("opt", {**OPT, "word_embed_proj_dim": 64}),
    "opt, narrow embedding": ("opt", {**OPT, "word_embed_proj_dim": 32, "do_layer_norm_before": False}),
    "nemotron_h": ("nemotron_h", MAMBA),
}

VISION3 = {
    "depth": 3,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_heads": 2,
    "out_hidden_size": 64,
    "num_position_embeddings": 16,
    "patch_size": 4,
}
DEEP = {**VISION3, "deepstack_visual_indexes": [0, 1]}
SIGLIP = {
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "image_size": 56,
    "patch_size": 14,
    "vision_use_head": False,
}
SEEING: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "qwen2_vl": ({}, {"depth": 3, "embed_dim": 32, "hidden_size": 64, "mlp_ratio": 3, "num_heads": 2}),
    "qwen2_5_vl": ({}, {"depth": 3, "hidden_size": 32, "intermediate_size": 40, "out_hidden_size": 64, "num_heads": 2}),
    "qwen3_vl": ({"head_dim": 32}, DEEP),
    "qwen3_vl_moe": ({**EXPERTS, "head_dim": 32}, DEEP),
    "qwen3_5": (LINEAR, VISION3),
    "qwen3_5_moe": ({**EXPERTS, **SHARED, **LINEAR}, VISION3),
    "gemma3": ({"head_dim": 32}, SIGLIP),
}
SOUND = {
    "d_model": 32,
    "encoder_layers": 2,
    "encoder_ffn_dim": 40,
    "encoder_attention_heads": 2,
    "downsample_hidden_size": 6,
    "output_dim": 64,
}


def counted(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("case", DECODERS)
def test_decoders(case: str) -> None:
    architecture, keys = DECODERS[case]
    config = transformers.AutoConfig.for_model(architecture, **{**DECODER, **keys})
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    shape = shape_of_config(config.to_dict(), path="config.json")
    assert shape.parameters == counted(model)
    layers = getattr(model.model, "decoder", model.model).layers
    assert sum(count * each for _, count, each in shape.layer_kinds) == counted(layers)
    assert shape.layer_parameters == max(counted(layer) for layer in layers)


@pytest.mark.parametrize("case", DECODERS)
def test_adapters_stand_beside_the_matrices_of_the_modules(case: str) -> None:
    """By name: both sides of each linear layer, and of each expert of those that one tensor holds."""
    architecture, keys = DECODERS[case]
    config = transformers.AutoConfig.for_model(architecture, **{**DECODER, **keys})
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    expected: dict[str, int] = {}
    for name, module in getattr(model.model, "decoder", model.model).layers.named_modules():
        for part, both in sides(name.rpartition(".")[2], module).items():
            expected[part] = expected.get(part, 0) + both
    assert widths(shape_of_config(config.to_dict(), path="config.json")) == expected


def sides(name: str, module: torch.nn.Module) -> dict[str, int]:
    if isinstance(module, torch.nn.Linear):
        return {} if name in ("shared_expert_gate", "router") else {name: module.in_features + module.out_features}
    down = getattr(module, "down_proj", None)
    if not isinstance(down, torch.nn.Parameter) or "GptOss" in type(module).__name__:
        return {}
    experts, hidden, inner = down.shape
    names = ("gate_proj", "up_proj", "down_proj") if hasattr(module, "gate_up_proj") else ("up_proj", "down_proj")
    return dict.fromkeys(names, experts * (hidden + inner))


@pytest.mark.parametrize("architecture", SEEING)
def test_models_that_see(architecture: str) -> None:
    text, vision = SEEING[architecture]
    config = transformers.AutoConfig.for_model(architecture, text_config={**DECODER, **text}, vision_config=vision)
    with torch.device("meta"):
        model = transformers.AutoModelForImageTextToText.from_config(config)
    shape = shape_of_config(config.to_dict(), path="config.json")
    assert shape.parameters == counted(model)
    assert shape.multiplied_parameters <= shape.parameters - shape.vision_parameters


def test_a_model_that_sees_and_hears() -> None:
    config = transformers.Qwen3OmniMoeThinkerConfig(
        text_config={**DECODER, **EXPERTS, "head_dim": 32}, vision_config=DEEP, audio_config=SOUND
    )
    with torch.device("meta"):
        model = transformers.Qwen3OmniMoeThinkerForConditionalGeneration(config)
    whole = {"model_type": "qwen3_omni_moe", "thinker_config": config.to_dict()}
    assert shape_of_config(whole, path="config.json").parameters == counted(model)


def test_every_architecture_is_counted_somewhere() -> None:
    """The rest is in test_models.py; Kimi-K2 is DeepSeek-V3 under another name (its config.json's `auto_map`). Ling's
    modules are not in transformers: its counts are those that are published (test_models.py)."""
    here = {name.removesuffix("_text") for name, _ in DECODERS.values()} | set(SEEING) | {"qwen3_omni_moe"}
    there = {"llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "kimi_k2", "bailing_moe"}
    assert here | there == set(ARCHITECTURES)


@pytest.mark.parametrize(
    "change",
    [
        {"moe_layer_freq": 2},
        {"attention_bias": True},
        {"n_routed_experts": "many"},
        {"kv_lora_rank": 0},
        {"num_hidden_layers": 10**30},
        {"hidden_size": 10**30},
        {"num_experts_per_tok": 10**6},
        {"n_shared_experts": -4},
        {"n_shared_experts": float("nan")},
        {"shared_expert_intermediate_size": "wide"},
        {"sliding_window": 8, "sliding_window_pattern": "two"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_keys_that_are_not_known_are_refused(change: dict[str, Any]) -> None:
    config = {"model_type": "deepseek_v3", **DECODER, **LATENT, **change}
    with pytest.raises(FlowError) as caught:
        shape_of_config(config, path="config.json")
    assert caught.value.diagnostics[0].code == "FR0403"
