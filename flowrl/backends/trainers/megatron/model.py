"""The model of one rank: a Hugging Face folder's configuration as Megatron Core's, and the module that it makes.

Weights are read by weights.py. Knows no optimizer.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForTokenClassification

from flowrl.backends.contract import RankSetup
from flowrl.backends.trainers.megatron.groups import Groups
from flowrl.backends.trainers.megatron.layers import ScalarHead, block_spec
from flowrl.backends.trainers.megatron.library import core
from flowrl.backends.trainers.megatron.names import Facts
from flowrl.backends.trainers.megatron.plain import odd_keys
from flowrl.diag.diagnostic import FlowError, InternalError, diagnose
from flowrl.placement.memory.stages import stage_layers

ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3")
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""The scaling of positions that Megatron Core knows, of Llama 3.1."""


def read_config(setup: RankSetup) -> Any:
    """The folder's configuration. Raises FlowError FR0801 for keys of the engine that this backend does not have, and
    FR0881 for a model that it cannot make."""
    if setup.model is None or setup.model_folder is None:
        raise InternalError(f"role `{setup.role.name}` has no model")
    _refuse(setup)
    config = AutoConfig.from_pretrained(str(setup.model_folder))
    odd = next(_odd(config), None)
    if odd is not None:
        raise FlowError(diagnose("FR0881", setup.model.span, model=setup.model.name, reason=odd))
    return config


def facts_of(config: Any, head: str) -> Facts:
    heads = int(config.num_attention_heads)
    return Facts(
        layers=int(config.num_hidden_layers),
        hidden=int(config.hidden_size),
        heads=heads,
        kv_heads=int(getattr(config, "num_key_value_heads", None) or heads),
        head_size=int(getattr(config, "head_dim", None) or config.hidden_size // heads),
        ffn=int(config.intermediate_size),
        vocab=int(config.vocab_size),
        tied=bool(config.tie_word_embeddings) and head == "lm",
        qkv_bias=config.model_type == "qwen2",
        qk_norm=config.model_type == "qwen3",
        scalar=head == "scalar",
    )


def full_shapes(config: Any, facts: Facts) -> dict[str, tuple[int, ...]]:
    """Name and shape of every full tensor, in Hugging Face's order, a tied one once: equal on every rank."""
    family = AutoModelForTokenClassification if facts.scalar else AutoModelForCausalLM
    if facts.scalar:
        config = type(config).from_dict({**config.to_dict(), "num_labels": 1})
    with torch.device("meta"):
        module = family.from_config(config)
    return {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}


def build(setup: RankSetup, config: Any, facts: Facts, groups: Groups, dtype: torch.dtype) -> Any:
    """This rank's stage of the decoder, its weights not set. A model in low precision is wrapped as Megatron Core
    wants it (Float16Module)."""
    layers = stage_layers(facts.layers, groups.pp)
    made = _transformer_config(setup, config, facts, groups, dtype, layers)
    rope = _rope(config)
    module = core().GPTModel(
        config=made,
        transformer_layer_spec=block_spec(facts.qk_norm, layers[groups.pp_rank]),
        vocab_size=facts.padded_vocab(groups.tp),
        max_sequence_length=int(config.max_position_embeddings),
        pre_process=groups.is_first,
        post_process=groups.is_last,
        position_embedding_type="rope",
        rotary_base=rope["rope_theta"],
        rope_scaling=rope["rope_type"] == "llama3",
        rope_scaling_factor=float(rope.get("factor", 1.0)),
        share_embeddings_and_output_weights=facts.tied,
    )
    if facts.scalar and groups.is_last:
        module.output_layer = nn.Identity()
        module.score = ScalarHead(facts.hidden)
    elif groups.is_last and made.sequence_parallel:
        # forward.py gathers the tokens before it, to run it on those alone that are asked about, and sums their
        # gradients after it.
        module.output_layer.sequence_parallel = module.output_layer.allreduce_dgrad = False
        module.output_layer.disable_grad_reduce = True
    if groups.is_first and config.pad_token_id is not None:
        module.embedding.word_embeddings.register_forward_hook(_without_padding(config.pad_token_id, groups))
    module.to(setup.device)
    module.train(setup.role.engine.recompute in ("full", "selective"))
    return module if dtype is torch.float32 else core().Float16Module(made, module)


def _without_padding(pad_id: int, groups: Groups) -> Callable[[Any, Any, Tensor], Tensor]:
    """transformers' embeddings have a `padding_idx`: what is read for a padding token, also one that was sampled, has
    no gradient. Without this hook losses would part from those of `fsdp` after an update with such a token."""

    def hook(embedding: Any, given: Any, output: Tensor) -> Tensor:
        is_token = given[0] != pad_id
        if embedding.reduce_scatter_embeddings:  # [tokens of this tp rank, rows, hidden]
            is_token = is_token.transpose(0, 1).chunk(groups.tp)[groups.tp_rank]
        return torch.where(is_token[..., None], output, output.detach())

    return hook


def unwrapped(module: Any) -> Any:
    """The GPTModel inside wrappers."""
    while not hasattr(module, "decoder"):
        module = module.module
    return module


def save_config(config: Any, head: str, folder: Path) -> None:
    """The configuration with the class that the weights are of, as `flowrl export` and transformers read it."""
    family = AutoModelForTokenClassification if head == "scalar" else AutoModelForCausalLM
    name = family._model_mapping[type(config)].__name__  # pyright: ignore[reportAttributeAccessIssue]
    labels = {"num_labels": 1} if head == "scalar" else {}
    made = type(config).from_dict({**config.to_dict(), **labels, "architectures": [name]})
    (folder / "config.json").write_text(made.to_json_string(use_diff=True), encoding="utf-8")


def _transformer_config(
    setup: RankSetup, config: Any, facts: Facts, groups: Groups, dtype: torch.dtype, layers: tuple[int, ...]
) -> Any:
    engine = setup.role.engine
    is_uneven = len(set(layers)) > 1
    return core().TransformerConfig(
        num_layers=facts.layers,
        hidden_size=facts.hidden,
        num_attention_heads=facts.heads,
        num_query_groups=facts.kv_heads,
        kv_channels=facts.head_size,
        ffn_hidden_size=facts.ffn,
        layernorm_epsilon=float(config.rms_norm_eps),
        normalization="RMSNorm",
        qk_layernorm=facts.qk_norm,
        gated_linear_unit=True,
        activation_func=nn.functional.silu,
        add_bias_linear=False,
        add_qkv_bias=facts.qkv_bias,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        tensor_model_parallel_size=groups.tp,
        pipeline_model_parallel_size=groups.pp,
        pipeline_model_parallel_layout=_stages(layers) if is_uneven else None,
        sequence_parallel=groups.tp > 1 and engine.sequence_parallel is not False,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype is torch.bfloat16,
        # Micro-batches are as long as their rows, and each is multiplied by its share of the whole minibatch before.
        variable_seq_lengths=True,
        moe_token_dispatcher_type="alltoall",
        calculate_per_token_loss=True,
        use_cpu_initialization=True,
        perform_initialization=False,
        # Fused kernels are those of Apex and TransformerEngine.
        masked_softmax_fusion=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        gradient_accumulation_fusion=False,
        persist_layer_norm=False,
        apply_rope_fusion=False,
        batch_p2p_comm=setup.device != "cpu",
        **_recomputed(engine.recompute),
    )


def _recomputed(recompute: str | None) -> dict[str, Any]:
    """`full` keeps the input of each layer, `selective` all but the inside of attention (Korthikanti et al. 2022,
    arXiv:2205.05198)."""
    if recompute == "full":
        return {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    if recompute == "selective":
        return {"recompute_granularity": "selective", "recompute_modules": ["core_attn"]}
    return {}


def _stages(layers: tuple[int, ...]) -> list[list[str]]:
    stages = [["decoder"] * count for count in layers]
    stages[0].insert(0, "embedding")
    stages[-1].append("loss")
    return stages


def _rope(config: Any) -> dict[str, Any]:
    found = dict(getattr(config, "rope_parameters", None) or {})
    found.setdefault("rope_theta", getattr(config, "rope_theta", 10_000.0))
    found.setdefault("rope_type", "default")
    return found


def _odd(config: Any) -> Any:
    """What of a model is not as this backend makes it."""
    kind = config.model_type
    if kind not in ARCHITECTURES:
        yield f"its architecture is `{kind}`; known are {', '.join(f'`{name}`' for name in ARCHITECTURES)}"
    if getattr(config, "hidden_act", "silu") != "silu":
        yield f"its feed-forward is gated by `{config.hidden_act}`, not `silu`"
    if getattr(config, "mlp_bias", False) or getattr(config, "attention_bias", False):
        yield "its projections have biases beyond those of queries, keys and values of qwen2"
    rope = _rope(config)
    is_llama3 = rope["rope_type"] == "llama3" and all(rope.get(key) == value for key, value in LLAMA3.items())
    if rope["rope_type"] != "default" and not is_llama3:
        yield f"its positions are scaled by `{rope['rope_type']}`"
    window = getattr(config, "sliding_window", None)
    if window is not None and window < config.max_position_embeddings and getattr(config, "use_sliding_window", True):
        yield f"its attention slides over {window:,} tokens"


def _refuse(setup: RankSetup) -> None:
    engine, layout = setup.role.engine, setup.layout
    odd = [f"`{name}: {getattr(layout, name)}`" for name in ("cp", "ep") if getattr(layout, name) > 1]
    odd += odd_keys(engine)
    if setup.model is not None and setup.model.lora is not None:
        odd.append("LoRA")
    if setup.model is not None and setup.model.dtype == "float16":
        odd.append("`dtype: float16`")
    if odd:
        what = f"{', '.join(odd)} of role `{setup.role.name}` on backend `megatron`"
        known = "`tp`, `pp` and `dp`, `recompute`, models in `float32` and `bfloat16`"
        raise FlowError(diagnose("FR0801", setup.role.span, what=what, known=known))
    if setup.model is not None and setup.model.head not in ("lm", "scalar"):
        what = f"`head: {setup.model.head}`"
        raise FlowError(diagnose("FR0801", setup.role.span, what=what, known="`lm`, `scalar`"))
