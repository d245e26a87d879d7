"""A small model in place of a large one, with the large one's tokenizer where this machine has it: for rehearsals.

Takes a source as a flow names it and the sizes wanted; makes a Hugging Face folder with random weights. Fetches
nothing: what is neither a folder nor in the local cache gets a tokenizer of bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForTokenClassification,
    AutoTokenizer,
)
from transformers.utils import logging as hf_logging

from flowrl.backends.models import byte_tokenizer, materialise
from flowrl.backends.seeds import sample_seed
from flowrl.graph.graph import Model

KEPT = ("qwen2", "qwen3", "llama", "mistral")
"""Architectures that are shrunk as they are; another one becomes a qwen2, or with images a qwen2_5_vl."""
TEMPLATE = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}assistant: "
"""Of a tokenizer that has none, so that messages can be prompts."""
TEXT_TOKENS = 128
"""That a small denoiser's text encoders take."""
VISION_TOKENS = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>", "<|video_pad|>")
SEEING_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}{% if part['type'] == 'image' %}" + "".join(VISION_TOKENS[:3]) + ""
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}\n{% endfor %}assistant: "
)


@dataclass(frozen=True, slots=True)
class Small:
    """Sizes of the small model."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    positions: int
    sees: bool = False
    """Whether prompts bring images."""


@dataclass(frozen=True, slots=True)
class Made:
    """What it has become."""

    architecture: str
    tokenizer: str
    """`bytes`, or whose it is."""


def make_small(model: Model, folder: Path, small: Small, out: Path, seed: int) -> Made:
    """Make the folder `out`. `folder`: where the flow's relative paths start."""
    hf_logging.disable_progress_bar()
    if model.head == "denoiser":
        make_denoiser(out, sample_seed(seed, f"model.{model.name}", 0))
        return Made("flux", "bytes")
    source = _here(model.source, folder)
    if small.sees:
        make_seeing(out, small, sample_seed(seed, f"model.{model.name}", 0))
        return Made("qwen2_5_vl", "bytes")
    if source is None:
        return _bytes(model, folder, small, out, seed)
    tokenizer: Any = AutoTokenizer.from_pretrained(str(source))
    config = _shrunk(AutoConfig.from_pretrained(str(source)), small)
    if config is None:
        config = AutoConfig.for_model("qwen2", vocab_size=len(tokenizer), **_sizes(small))
    config.vocab_size = max(int(config.vocab_size), len(tokenizer))
    config.initializer_range = small.hidden**-0.5
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(sample_seed(seed, f"model.{model.name}", 0))
        made: Any = AutoModelForCausalLM.from_config(config)
    made.to(torch.float32).save_pretrained(str(out))
    _with_template(tokenizer, out)
    _with_head(model, out, seed)
    return Made(str(config.model_type), model.source)


def _bytes(model: Model, folder: Path, small: Small, out: Path, seed: int) -> Made:
    name = (model.inline or {}).get("tokenizer", "bytes")
    inline = {
        "architecture": "qwen2",
        "tokenizer": name,
        "hidden_size": small.hidden,
        "layers": small.layers,
        "heads": small.heads,
        "kv_heads": small.kv_heads,
        "ffn_size": small.ffn,
        "max_positions": small.positions,
    }
    tiny = Model(name=model.name, source="inline", head=model.head, dtype="float32", inline=inline)
    out.parent.mkdir(parents=True, exist_ok=True)
    materialise(tiny, folder, out, seed)
    if model.inline is None:
        _with_template(AutoTokenizer.from_pretrained(str(out)), out)
    _with_head(model, out, seed)
    return Made("qwen2", name)


def make_seeing(out: Path, small: Small, seed: int) -> None:
    """A folder with a Qwen2.5-VL of random weights, whose tokenizer has a token for each byte. An image becomes four to
    nine tokens."""
    # It imports Pillow (the extra `images`), which models of text do without.
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    tokenizer = byte_tokenizer(VISION_TOKENS)
    tokenizer.chat_template = SEEING_TEMPLATE
    start, image, end, video = (tokenizer.convert_tokens_to_ids(token) for token in VISION_TOKENS)
    width = small.hidden // small.heads
    text: dict[str, Any] = _sizes(small) | {
        "vocab_size": len(tokenizer),
        "initializer_range": small.hidden**-0.5,
        "rope_parameters": {
            "rope_type": "default",
            "mrope_section": [width // 2 - 2 * (width // 6), *[width // 6] * 2],
        },
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
    }
    vision = {
        "depth": small.layers,
        "hidden_size": small.hidden,
        "num_heads": small.heads,
        "intermediate_size": small.ffn,
        "out_hidden_size": small.hidden,
        "fullatt_block_indexes": [small.layers - 1],
        "initializer_range": small.hidden**-0.5,
    }
    config: Any = AutoConfig.for_model(
        "qwen2_5_vl",
        text_config=text,
        vision_config=vision,
        vision_start_token_id=start,
        vision_end_token_id=end,
        image_token_id=image,
        video_token_id=video,
    )
    config.initializer_range = small.hidden**-0.5
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made: Any = AutoModelForImageTextToText.from_config(config)
    made.to(torch.float32).save_pretrained(str(out))
    tokenizer.save_pretrained(str(out))
    side = vision_side(config)
    Qwen2VLImageProcessorPil(min_pixels=(2 * side) ** 2, max_pixels=(3 * side) ** 2).save_pretrained(str(out))


def make_denoiser(out: Path, seed: int) -> None:
    """A folder with a FLUX pipeline of random weights: a block of each kind, text encoders of one layer, and a decoder
    that makes four times four pixels of a latent."""
    from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel
    from transformers import CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel

    tokenizer: Any = byte_tokenizer(())
    tokenizer.model_max_length = TEXT_TOKENS
    eos, pad, words = tokenizer.eos_token_id, tokenizer.pad_token_id, len(tokenizer)
    clip = CLIPTextConfig(
        vocab_size=words,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=TEXT_TOKENS,
        eos_token_id=eos,
        bos_token_id=eos,
        pad_token_id=pad,
    )
    t5 = T5Config(vocab_size=words, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
    decoder: dict[str, Any] = {
        "down_block_types": ("DownEncoderBlock2D",) * 3,
        "up_block_types": ("UpDecoderBlock2D",) * 3,
        "block_out_channels": (8, 8, 8),
        "latent_channels": 4,
        "norm_num_groups": 4,
        "use_quant_conv": False,
        "use_post_quant_conv": False,
        "scaling_factor": 0.36,
        "shift_factor": 0.12,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        transformer = FluxTransformer2DModel(
            patch_size=1,
            in_channels=16,
            num_layers=1,
            num_single_layers=1,
            attention_head_dim=16,
            num_attention_heads=2,
            joint_attention_dim=16,
            pooled_projection_dim=16,
            axes_dims_rope=(4, 6, 6),
        )
        vae = AutoencoderKL(**decoder)
        text, text_2 = CLIPTextModel(clip).eval(), T5EncoderModel(t5).eval()
    FluxPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(),
        vae=vae,
        text_encoder=text,
        tokenizer=tokenizer,
        text_encoder_2=text_2,
        tokenizer_2=tokenizer,
        transformer=transformer,
    ).save_pretrained(str(out))


def vision_side(config: Any) -> int:
    """Pixels of the side of a square that one token stands for."""
    return int(config.vision_config.patch_size * config.vision_config.spatial_merge_size)


def _here(source: str, folder: Path) -> Path | None:
    """The folder of a model that this machine has."""
    local = folder / source
    if (local / "config.json").is_file():
        return local
    from huggingface_hub import snapshot_download

    try:
        cached = Path(snapshot_download(source, local_files_only=True))
    except Exception:  # not a hub id, or not in the cache: the hub says it in many ways
        return None
    return cached if (cached / "config.json").is_file() and any(cached.glob("tokenizer*")) else None


def _sizes(small: Small) -> dict[str, Any]:
    return {
        "num_hidden_layers": small.layers,
        "hidden_size": small.hidden,
        "num_attention_heads": small.heads,
        "num_key_value_heads": small.kv_heads,
        "intermediate_size": small.ffn,
        "max_position_embeddings": small.positions,
    }


def _shrunk(config: Any, small: Small) -> Any:
    """The configuration with other sizes; None for an architecture that is not kept."""
    if config.model_type not in KEPT:
        return None
    told = config.to_dict() | _sizes(small) | {"head_dim": small.hidden // small.heads}
    for of_layers in ("layer_types", "max_window_layers"):
        told.pop(of_layers, None)
    return type(config).from_dict(told)


def _with_template(tokenizer: Any, out: Path) -> None:
    tokenizer.chat_template = tokenizer.chat_template or TEMPLATE
    tokenizer.save_pretrained(str(out))


def _with_head(model: Model, out: Path, seed: int) -> None:
    """A head of one number a token, of random weights, in the folder of a model that has one: a reward model without
    weights for it would be none."""
    if model.head != "scalar":
        return
    before = hf_logging.get_verbosity()
    hf_logging.set_verbosity_error()  # the head is expected to be missing
    try:
        made: Any = AutoModelForTokenClassification.from_pretrained(str(out), num_labels=1)
    finally:
        hf_logging.set_verbosity(before)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(sample_seed(seed, f"model.{model.name}.head", 0))
        made.score.weight.normal_(std=made.config.hidden_size**-0.5)
        made.score.bias.zero_()
    made.save_pretrained(str(out))
