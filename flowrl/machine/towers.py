"""Encoders of images and sound beside a decoder: how many parameters a config.json says they have.

Takes the `vision_config` or `audio_config` of a config.json and the width of the decoder; gives a number. The formulas
follow transformers' modeling_*.py of each family, whose module trees a test counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Config = Mapping[str, Any]


def _patches(vision: Config, width: int, side: int, bias: bool) -> int:
    """The convolution that makes patches of images, or of pairs of them, into vectors."""
    channels = int(vision.get("in_channels") or vision.get("in_chans") or vision.get("num_channels") or 3)
    pixels = int(vision.get("temporal_patch_size", 1)) * int(vision.get("patch_size", side)) ** 2
    return channels * pixels * width + (width if bias else 0)


def _plain_block(width: int, ffn: int) -> int:
    """Attention and a feed-forward of two matrices, all with biases, and two layer norms."""
    return 4 * (width * width + width) + 2 * width * ffn + ffn + width + 4 * width


def _merger(vision: Config, width: int, out: int, norm: int) -> int:
    """Patches of a square joined, normed and led into the decoder's width."""
    merged = width * int(vision.get("spatial_merge_size", 2)) ** 2
    return norm + merged * merged + merged + merged * out + out


def qwen2_vl(vision: Config, out: int) -> int:
    """Qwen2-VL: blocks with layer norms, `mlp_ratio` times as wide inside."""
    width = int(vision.get("embed_dim", 1280))
    block = _plain_block(width, int(width * float(vision.get("mlp_ratio", 4))))
    patches = _patches({"temporal_patch_size": 2, **vision}, width, 14, False)
    return int(vision.get("depth", 32)) * block + patches + _merger(vision, width, out, 2 * width)


def qwen2_5_vl(vision: Config, out: int) -> int:
    """Qwen2.5-VL: gated blocks with biases and RMS norms."""
    width, ffn = int(vision.get("hidden_size", 1280)), int(vision.get("intermediate_size", 3420))
    block = 4 * width * width + 4 * width + 3 * width * ffn + 2 * ffn + width + 2 * width
    patches = _patches({"temporal_patch_size": 2, **vision}, width, 14, False)
    return int(vision.get("depth", 32)) * block + patches + _merger(vision, width, out, width)


def qwen3_vl(vision: Config, out: int) -> int:
    """Qwen3-VL: learned positions, plain blocks, a merger at the end and one for each layer whose output the decoder
    takes too (DeepStack); Qwen3.5 has none of the latter."""
    width = int(vision.get("hidden_size", 1152))
    block = _plain_block(width, int(vision.get("intermediate_size", 4304)))
    patches = _patches({"temporal_patch_size": 2, **vision}, width, 16, True)
    positions = int(vision.get("num_position_embeddings", 2304)) * width
    merged = width * int(vision.get("spatial_merge_size", 2)) ** 2
    deep = len(vision.get("deepstack_visual_indexes") or ()) * _merger(vision, width, out, 2 * merged)
    return int(vision.get("depth", 27)) * block + patches + positions + _merger(vision, width, out, 2 * width) + deep


def siglip(vision: Config, out: int) -> int:
    """Gemma 3: SigLIP without its pooling head, a norm and one matrix into the decoder."""
    width = int(vision.get("hidden_size", 1152))
    block = _plain_block(width, int(vision.get("intermediate_size", 4304)))
    side = int(vision.get("patch_size", 14))
    positions = (int(vision.get("image_size", 896)) // side) ** 2 * width
    patches = _patches(vision, width, 14, True)
    return int(vision.get("num_hidden_layers", 27)) * block + patches + positions + 2 * width + width + width * out


def qwen3_audio(audio: Config, out: int) -> int:
    """Qwen3-Omni's encoder of sound: three convolutions, plain blocks, two matrices into the decoder."""
    width, down = int(audio.get("d_model", 1280)), int(audio.get("downsample_hidden_size", 480))
    block = _plain_block(width, int(audio.get("encoder_ffn_dim", 5120)))
    bins = (((int(audio.get("num_mel_bins", 128)) + 1) // 2 + 1) // 2 + 1) // 2
    convolutions = 9 * down + down + 2 * (9 * down * down + down) + down * bins * width
    led = width * width + width + width * out + out
    return int(audio.get("encoder_layers", 32)) * block + 2 * width + convolutions + led


VISION: Mapping[str, Callable[[Config, int], int]] = {
    "qwen2_vl": qwen2_vl,
    "qwen2_5_vl": qwen2_5_vl,
    "qwen3_vl": qwen3_vl,
    "qwen3_vl_moe": qwen3_vl,
    "qwen3_5": qwen3_vl,
    "qwen3_5_moe": qwen3_vl,
    "qwen3_omni_moe": qwen3_vl,
    "gemma3": siglip,
}
"""By `model_type`."""


def tower_parameters(architecture: str, config: Config, out: int) -> int:
    """All encoders of a config.json: `config` is what holds `vision_config` and `audio_config`."""
    vision, audio = config.get("vision_config"), config.get("audio_config")
    images = VISION[architecture](vision, out) if architecture in VISION and vision else 0
    return images + (qwen3_audio(audio, out) if architecture == "qwen3_omni_moe" and audio else 0)
