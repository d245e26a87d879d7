"""A tiny model that takes images, and images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

from flowrl.backends.batch import Batch
from flowrl.backends.small_models import Small, make_seeing
from tests.backends.ranks import prompts

SMALL = Small(layers=2, hidden=32, heads=2, kv_heads=1, ffn=64, positions=256, sees=True)


def make_tiny_seeing(out: Path, seed: int = 0) -> Path:
    """A Hugging Face folder with a Qwen2.5-VL of two layers of 32 dims, and as many before them for images."""
    make_seeing(out, SMALL, seed)
    return out


def png(seed: int, height: int = 60, width: int = 90) -> bytes:
    """The file of an image of noise."""
    out = BytesIO()
    numbers = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(numbers).save(out, format="PNG")
    return out.getvalue()


def with_images(batch: Batch, images: Sequence[tuple[bytes, ...]]) -> Batch:
    return replace(batch, columns={**batch.columns, "images": tuple(images)})


def shown(texts: Sequence[str], images: Sequence[tuple[bytes, ...]]) -> Batch:
    return with_images(prompts(texts), images)
