"""A Hugging Face config.json as a ModelShape. Takes the mapping that the file holds; opens nothing.

`ARCHITECTURES` holds what an architecture fixes and its file does not say; `ASSUMED` the values that transformers puts
for keys that a file of the hub may leave out. A test counts transformers' own module trees against the shapes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from flowrl.diag.diagnostic import Diagnostic, FlowError, Help, Respelt, diagnose
from flowrl.diag.near import edit_distance, near_names
from flowrl.diag.span import Span
from flowrl.machine.attention import DeltaNet, LatentAttention, Mamba2
from flowrl.machine.shape import ModelShape
from flowrl.machine.towers import tower_parameters

_QWEN2: Mapping[str, Any] = {"qkv_bias": True, "output_bias": False}
_QWEN3: Mapping[str, Any] = {"qk_norm": True}
_NEXT: Mapping[str, Any] = {"qk_norm": True, "output_gate": True}

ARCHITECTURES: Mapping[str, Mapping[str, Any]] = {
    "llama": {},
    "mistral": {},
    "ministral": {},
    "mixtral": {},
    "smollm3": {},
    "qwen2": _QWEN2,
    "qwen2_moe": {**_QWEN2, "shared_gate": True},
    "qwen2_vl": _QWEN2,
    "qwen2_5_vl": _QWEN2,
    "qwen3": _QWEN3,
    "qwen3_moe": _QWEN3,
    "qwen3_vl": _QWEN3,
    "qwen3_vl_moe": _QWEN3,
    "qwen3_omni_moe": _QWEN3,
    "qwen3_next": {**_NEXT, "shared_gate": True},
    "qwen3_5": _NEXT,
    "qwen3_5_moe": {**_NEXT, "shared_gate": True},
    "deepseek_v2": {},
    "deepseek_v3": {},
    "kimi_k2": {},
    "glm4": {"output_bias": False, "layer_norms": 4},
    "glm4_moe": {"output_bias": False},
    "glm4_moe_lite": {},
    "bailing_moe": {},
    "gpt_oss": {"ffn_bias": True, "router_bias": True, "sinks": True},
    "gemma": {},
    "gemma2": {"layer_norms": 4},
    "gemma3": {"layer_norms": 4, "qk_norm": True},
    "nemotron_h": {"ffn_matrices": 2, "layer_norms": 1},
    "opt": {"qkv_bias": True, "output_bias": True, "ffn_bias": True, "norm_bias": True, "ffn_matrices": 2},
}
"""`model_type` of config.json → what is fixed by the architecture and not written in the file (transformers'
modeling_*.py: Qwen2Attention has biases on q, k and v; Qwen3Attention normalises q and k per head)."""

ASSUMED: Mapping[str, Mapping[str, Any]] = {
    "gemma": {"tie_word_embeddings": True, "head_dim": 256},
    "gemma2": {"tie_word_embeddings": True, "sliding_window": 4096, "sliding_window_pattern": 2},
    "gemma3": {
        "tie_word_embeddings": True,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 262208,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
    },
    "gpt_oss": {"attention_bias": True, "sliding_window": 128, "sliding_window_pattern": 2},
    "opt": {"tie_word_embeddings": True},
    "glm4": {"head_dim": 128},
    "qwen3_next": {"full_attention_interval": 4},
    "qwen3_5": {"full_attention_interval": 4},
    "qwen3_5_moe": {"full_attention_interval": 4},
}
"""Keys that transformers' configuration_*.py fills in."""

MIXTURES = (
    "mixtral",
    "qwen2_moe",
    "qwen3_moe",
    "qwen3_vl_moe",
    "qwen3_omni_moe",
    "qwen3_next",
    "qwen3_5_moe",
    "deepseek_v2",
    "deepseek_v3",
    "kimi_k2",
    "glm4_moe",
    "glm4_moe_lite",
    "bailing_moe",
    "gpt_oss",
    "nemotron_h",
)
"""Architectures whose feed-forward is a mixture of experts (transformers 5 writes `num_local_experts` for some)."""

_WIDE = ("mixtral", "gpt_oss")
"""Mixtures whose `intermediate_size` is the width of an expert."""
MOST = 2**24
"""Of any number: the largest of the hub is Llama 4's max_position_embeddings, 10,485,760."""
MOST_LAYERS = 2**12

_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
_SHARED = ("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size")
_COUNTED = ("n_shared_experts", "num_shared_experts")
"""How many experts all tokens meet: of most mixtures, and of Bailing's."""
_LINEAR = ("linear_attention", "mamba")


class _Reader:
    """The keys of one config, with faults that say where they stand."""

    def __init__(self, config: Mapping[str, Any], path: str | Path, span: Span | None) -> None:
        self.config, self.path, self.span = config, path, span

    def fail(self, fault: str) -> FlowError:
        return FlowError(diagnose("FR0403", self.span, path=self.path, fault=fault))

    def get(self, key: str, default: Any = None) -> Any:
        value = self.config.get(key)
        return default if value is None else value

    def number(self, key: str, default: int | None = None, least: int = 1, most: int = MOST) -> int:
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            is_large = isinstance(value, int) and value > most
            wanted = f"a number up to {most:,}" if is_large else f"a number from {least} up"
            raise self.fail(f"`{key}` is missing" if value is None else f"`{key}` is {value!r}, not {wanted}")
        return value

    def names(self, key: str) -> list[str]:
        value = self.get(key, [])
        return [str(each) for each in cast("Sequence[object]", value)] if isinstance(value, (list, tuple)) else []


def shape_of_config(config: Mapping[str, Any], *, path: str | Path, span: Span | None = None) -> ModelShape:
    """The shape that a Hugging Face config.json describes. Raises FlowError FR0403 (keys) or FR0404 (architecture)."""
    found = str(config.get("model_type"))
    architecture = found.removesuffix("_text")
    if architecture not in ARCHITECTURES:
        raise FlowError(unknown_architecture(found, tuple(ARCHITECTURES), str(path), span))
    outer = config.get("thinker_config") or config
    inner: Mapping[str, Any] = outer.get("text_config") or outer
    tied = next((each["tie_word_embeddings"] for each in (config, inner) if "tie_word_embeddings" in each), None)
    read = _Reader(
        {**ASSUMED.get(architecture, {}), **_given(inner), **_given({"tie_word_embeddings": tied})}, path, span
    )
    hidden = read.number("hidden_size")
    heads = read.number("num_attention_heads")
    layers = read.number("num_hidden_layers", len(read.names("layers_block_type")) or None, most=MOST_LAYERS)
    names = _Reader(config, path, span).names("architectures")
    values: dict[str, Any] = {
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "kv_heads": read.number("num_key_value_heads", heads),
        "head_dim": read.number("head_dim", max(1, hidden // heads)),
        "vocab": read.number("vocab_size"),
        "max_positions": read.number("max_position_embeddings", 2048),
        "tied": bool(read.get("tie_word_embeddings", False)),
        "head": "scalar" if any(each.endswith("ForSequenceClassification") for each in names) else "lm",
        "qkv_bias": bool(read.get("attention_bias", False)),
        "output_bias": bool(read.get("attention_bias", False)),
        "ffn_bias": bool(read.get("mlp_bias", False)),
        "vision_parameters": tower_parameters(architecture, outer, hidden),
        **_feed_forward(read, architecture, layers),
        **_window(read, architecture, layers),
        **_linear(read, architecture, layers),
        **_latent(read),
        **_own(read, architecture, hidden),
        **ARCHITECTURES[architecture],
    }
    return ModelShape(name=str(path), origin=str(path), architecture=architecture, **values)


def _given(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if value is not None}


def _feed_forward(read: _Reader, architecture: str, layers: int) -> dict[str, Any]:
    if architecture == "opt":
        return {"ffn": read.number("ffn_dim")}
    own = _nemotron_layers(read) if architecture == "nemotron_h" else None
    if architecture not in MIXTURES or (own is not None and not own["moe"]):
        return {"ffn": read.number("intermediate_size")}
    width = read.number("intermediate_size" if architecture in _WIDE else "moe_intermediate_size")
    expert_key = next((key for key in _EXPERTS if key in read.config), "num_experts")
    named = [key for key in _SHARED if read.get(key)]
    shared = read.number(named[0]) if named else read.number(_COUNTED[architecture == "bailing_moe"], 0, 0) * width
    dense = _dense_layers(read, layers) if own is None else own["mlp"]
    experts, each = read.number(expert_key), read.number("num_experts_per_tok")
    if each > experts:
        raise read.fail(f"`num_experts_per_tok` is {each:,}, more than the {experts:,} experts")
    return {
        "ffn": width,
        "experts": experts,
        "experts_per_token": each,
        "shared_ffn": shared,
        "dense_layers": dense,
        "dense_ffn": read.number("intermediate_size") if dense else 0,
    }


def _dense_layers(read: _Reader, layers: int) -> int:
    """Layers of a mixture whose feed-forward is dense: the first ones, those named, or all but every n-th."""
    kinds = read.names("mlp_layer_types")
    if kinds:
        return kinds.count("dense")
    if read.get("moe_layer_freq", 1) != 1:
        raise read.fail(f"`moe_layer_freq` is {read.get('moe_layer_freq')!r}; only 1 is known")
    first, step = read.number("first_k_dense_replace", 0, 0), read.number("decoder_sparse_step", 1)
    named = read.names("mlp_only_layers")
    return sum(at < first or str(at) in named or (at + 1) % step != 0 for at in range(layers))


def _window(read: _Reader, architecture: str, layers: int) -> dict[str, Any]:
    """Layers with a sliding window: those that `layer_types` names, all but each n-th, or all."""
    window = read.get("sliding_window")
    if window is None or read.get("use_sliding_window") is False or architecture.startswith("qwen3_"):
        return {}
    kinds, keys = read.names("layer_types"), ("sliding_window_pattern", "_sliding_window_pattern")
    pattern = next((read.number(key) for key in keys if read.get(key)), None)
    if kinds:
        count = kinds.count("sliding_attention")
    elif pattern:
        count = sum((at + 1) % pattern != 0 for at in range(layers))
    else:
        first = read.number("max_window_layers", 0, 0) if architecture.startswith("qwen") else 0
        count = max(0, layers - first)
    return {"window": read.number("sliding_window"), "windowed_layers": count} if count else {}


def _linear(read: _Reader, architecture: str, layers: int) -> dict[str, Any]:
    """Recurrent mixers: gated delta nets beside attention, or Mamba 2 in layers of their own."""
    if architecture == "nemotron_h":
        return _nemotron(read)
    kinds = read.names("layer_types")
    interval = read.number("full_attention_interval", 0, 0)
    if "linear_num_value_heads" not in read.config or not (kinds or interval):
        return {}
    count = sum(kind in _LINEAR for kind in kinds) if kinds else layers - layers // interval
    net = DeltaNet(
        key_heads=read.number("linear_num_key_heads"),
        value_heads=read.number("linear_num_value_heads"),
        key_dim=read.number("linear_key_head_dim"),
        value_dim=read.number("linear_value_head_dim"),
        kernel=read.number("linear_conv_kernel_dim", 4),
        state_bytes=4 if read.get("mamba_ssm_dtype") == "float32" else 0,
    )
    return {"linear": net, "linear_layers": count}


_NEMOTRON = {
    **dict.fromkeys(("M", "mamba", "linear_attention"), "mamba"),
    **dict.fromkeys(("*", "attention", "full_attention"), "attention"),
    **dict.fromkeys(("E", "moe"), "moe"),
    **dict.fromkeys(("-", "mlp"), "mlp"),
}
"""Letters of `hybrid_override_pattern`, or names of `layers_block_type`: one mixer or feed-forward a layer."""


def _nemotron_layers(read: _Reader) -> dict[str, int]:
    kinds = list(str(read.get("hybrid_override_pattern", ""))) or read.names("layers_block_type")
    unknown = next((kind for kind in kinds if kind not in _NEMOTRON), None)
    if unknown is not None or not kinds or read.get("moe_latent_size"):
        raise read.fail("its layers are not all Mamba 2, attention, experts or feed-forwards")
    found = [_NEMOTRON[kind] for kind in kinds]
    return {kind: found.count(kind) for kind in ("mamba", "attention", "moe", "mlp")}


def _nemotron(read: _Reader) -> dict[str, Any]:
    net = Mamba2(
        heads=read.number("mamba_num_heads"),
        head_dim=read.number("mamba_head_dim"),
        groups=read.number("n_groups"),
        state_dim=read.number("ssm_state_size"),
        kernel=read.number("conv_kernel", 4),
        state_bytes=4 if read.get("mamba_ssm_cache_dtype") == "float32" else 0,
    )
    count = _nemotron_layers(read)
    split = {"mixers": count["mamba"] + count["attention"], "feed_forwards": count["moe"] + count["mlp"]}
    return {"linear": net, "linear_layers": count["mamba"], **split}


def _latent(read: _Reader) -> dict[str, Any]:
    if "kv_lora_rank" not in read.config:
        return {}
    if read.get("attention_bias"):
        raise read.fail("`attention_bias` with latent attention is not known")
    latent = LatentAttention(
        q_rank=read.number("q_lora_rank", 0, 0),
        kv_rank=read.number("kv_lora_rank"),
        nope_dim=read.number("qk_nope_head_dim"),
        rope_dim=read.number("qk_rope_head_dim"),
        value_dim=read.number("v_head_dim"),
    )
    return {"latent": latent, "head_dim": latent.nope_dim + latent.rope_dim}


def _own(read: _Reader, architecture: str, hidden: int) -> dict[str, Any]:
    """What one family alone writes."""
    if architecture == "glm4_moe":
        return {"qk_norm": bool(read.get("use_qk_norm", False))}
    if architecture == "bailing_moe":
        return {"qkv_bias": bool(read.get("use_qkv_bias", False)), "output_bias": bool(read.get("use_bias", False))}
    if architecture != "opt":
        return {}
    width = read.number("word_embed_proj_dim", hidden)
    positions = read.number("max_position_embeddings", 2048) + 2
    return {
        "learned_positions": positions,
        "embedding_width": 0 if width == hidden else width,
        "last_norm": bool(read.get("do_layer_norm_before", True)) and not read.get("_remove_final_layer_norm", False),
    }


def unknown_architecture(found: str, known: tuple[str, ...], where: str, span: Span | None) -> Diagnostic:
    """FR0404 with the near name of an architecture."""
    near = [name for name in near_names(found, list(known)) if edit_distance(found, name) <= max(1, len(found) // 4)]
    helps = [replace_help(found, near[0], "an architecture", span)] if near else []
    return diagnose("FR0404", span, found=found, where=where, known=", ".join(known), helps=helps)


def replace_help(old: str, new: str, what: str, span: Span | None) -> Help:
    """A help that puts a near name in place of one that is not known."""
    return Respelt(text=f"{what} with a near name exists: `{new}` for `{old}`", span=span, old=old, new=new)
