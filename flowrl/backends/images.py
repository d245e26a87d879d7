"""Images beside prompts: where they stand in a prompt's text, how many tokens each takes, and their pixels.

An image is its file's bytes (PNG, JPEG, …) all the way through a flow; each role that holds a model makes pixels of it
by that model's own processor, so one copy of a prompt's images serves all its samples. Must not know batches or ranks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import AutoConfig

from flowrl.backends.image_files import opened
from flowrl.diag.diagnostic import FlowError, diagnose
from flowrl.diag.span import Span

KINDS = ("qwen2_vl", "qwen2_5_vl")
"""Architectures whose images are read: any number of patches each, every patch a row of numbers."""
MARK = "<image>"
"""Where an image stands in a prompt that is a text."""
BLANK_SIDE = 56
KEPT_BYTES = 2**28
"""Of pixels that are kept for the next op, which mostly is about the same images."""


@dataclass(frozen=True, slots=True)
class Pixels:
    """Images one after another."""

    values: Tensor
    """float32 [patches, numbers]."""
    grid: Tensor
    """int64 [images, 3]: patches in time, height and width."""


class Vision:
    """How the model of a folder takes images. Raises FlowError FR0867 where it takes none."""

    def __init__(self, folder: Path, span: Span | None = None) -> None:
        config: Any = AutoConfig.from_pretrained(str(folder))
        if config.model_type not in KINDS:
            known = ", ".join(f"`{kind}`" for kind in KINDS)
            reason = f"it is a `{config.model_type}`; images are read by {known}"
            raise FlowError(diagnose("FR0867", span, folder=folder, reason=reason))
        from transformers import AutoImageProcessor

        try:
            # Of two ways to the same pixels the one that needs no torchvision.
            self._processor: Any = AutoImageProcessor.from_pretrained(str(folder), backend="pil")
        except (OSError, ValueError, ImportError) as error:
            reason = f"its image processor cannot be made: {str(error).strip().splitlines()[0]}"
            raise FlowError(diagnose("FR0867", span, folder=folder, reason=reason)) from error
        self.token_id = int(config.image_token_id)
        self._merged = int(config.vision_config.spatial_merge_size) ** 2
        self._kept: OrderedDict[bytes, Pixels] = OrderedDict()
        self._held = 0

    def pixels(self, images: Sequence[bytes], name: str = "an image", span: Span | None = None) -> list[Pixels]:
        """Of each image by itself. Raises FlowError FR0865 for one that is none."""
        return [self._of(data, f"image {number} of {name}", span) for number, data in enumerate(images, start=1)]

    def tokens(self, grid: Tensor) -> list[int]:
        """How many tokens stand for each image."""
        return (grid.prod(dim=-1) // self._merged).tolist()

    def blank(self) -> Pixels:
        """A black image, for rows without any."""
        from PIL import Image

        out = BytesIO()
        Image.new("RGB", (BLANK_SIDE, BLANK_SIDE)).save(out, format="PNG")
        return self._of(out.getvalue(), "a blank image", None)

    def _of(self, data: bytes, name: str, span: Span | None) -> Pixels:
        known = self._kept.get(data)
        if known is not None:
            self._kept.move_to_end(data)
            return known
        made = self._processor(images=[opened(data, name, span)], return_tensors="pt")
        pixels = Pixels(made["pixel_values"].float(), made["image_grid_thw"].long())
        self._kept[data] = pixels
        self._held += pixels.values.nbytes
        while self._held > KEPT_BYTES and len(self._kept) > 1:
            self._held -= self._kept.popitem(last=False)[1].values.nbytes
        return pixels


def together(pixels: Sequence[Pixels]) -> Pixels:
    """All of them, of which there is at least one."""
    return Pixels(torch.cat([each.values for each in pixels]), torch.cat([each.grid for each in pixels]))


def placed(messages: Sequence[Mapping[str, object]], images: int) -> tuple[list[dict[str, object]], int]:
    """The messages with a part for each image, as chat templates take them, and how many parts they have: where a part
    of a message or MARK in its text says so, else all before the text of the first message of the user's."""
    made = [{**message, "content": _parts(message["content"])} for message in messages]
    places = sum(part["type"] == "image" for message in made for part in message["content"])
    if places or not images:
        return [dict(message) for message in made], places
    first = next((at for at, message in enumerate(messages) if message["role"] == "user"), 0)
    made[first]["content"] = [{"type": "image"}] * images + list(made[first]["content"])
    return [dict(message) for message in made], images


def expanded(ids: npt.NDArray[np.int32], token_id: int, counts: Sequence[int]) -> npt.NDArray[np.int32]:
    """With each token that stands for an image as often as the image has tokens."""
    repeats = np.ones(len(ids), dtype=np.int64)
    repeats[ids == token_id] = counts
    return np.repeat(ids, repeats)


def _parts(content: object) -> list[dict[str, Any]]:
    if isinstance(content, list | tuple):
        return [dict(part) if isinstance(part, Mapping) else {"type": "text", "text": str(part)} for part in content]
    parts: list[dict[str, Any]] = []
    for number, text in enumerate(str(content).split(MARK)):
        if number:
            parts.append({"type": "image"})
        if text:
            parts.append({"type": "text", "text": text})
    return parts
