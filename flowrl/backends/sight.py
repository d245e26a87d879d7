"""What a transformers model sees beside its tokens: pixels, which tokens they stand at, and positions that follow them.

Takes rows of tokens with their images; gives what a forward pass of the module is called with. The generator and the
trainer both call it, so that a token's log-prob is the same number in each. Knows no batch and no loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flowrl.backends.images import Pixels, Vision, together


@dataclass(frozen=True, slots=True)
class Sight:
    """Of rows of tokens [rows, tokens]."""

    pixels: Pixels
    places: Tensor
    """bool [rows, tokens]: tokens that stand for a part of an image."""
    positions: Tensor
    """int64 [3, rows, tokens]: place in time, height and width; 0 where a row has no token."""

    @property
    def follows(self) -> Tensor:
        """int64 [rows, 1]: the position of the token behind each row."""
        return self.positions.amax(dim=(0, 2))[:, None] + 1

    def packed(self, own: Tensor) -> Sight:
        """Of the same rows one after another, as a single one without padding."""
        return Sight(self.pixels, self.places[own][None], self.positions[:, own][:, None])

    def inputs(self) -> dict[str, Tensor]:
        """Of the module's forward pass, positions apart."""
        return {"pixel_values": self.pixels.values, "image_grid_thw": self.pixels.grid}


def look(module: Any, vision: Vision, ids: Tensor, own: Tensor, images: Sequence[Sequence[Pixels]]) -> Sight:
    """`own`: bool [rows, tokens], tokens that are no padding. A row's first image tokens are its images'; one that the
    model wrote itself, later in the row, is a token like any other.

    Rows without any image see a blank one that stands nowhere: the ranks of a sharded model all run its encoder, and
    reduce its gradient, together.
    """
    counts = [sum(sum(vision.tokens(each.grid)) for each in row) for row in images]
    is_image = (ids == vision.token_id) & own
    places = is_image & (is_image.cumsum(dim=1) <= torch.tensor(counts, device=ids.device)[:, None])
    shown = [each for row in images for each in row]
    pixels = together(shown or [vision.blank()])
    pixels = Pixels(pixels.values.to(ids.device), pixels.grid.to(ids.device))
    positions, _ = module.model.get_rope_index(
        ids, mm_token_type_ids=places.int(), image_grid_thw=pixels.grid, attention_mask=own.long()
    )
    return Sight(pixels, places, positions)


@contextmanager
def standing(module: Any, places: Tensor) -> Iterator[None]:
    """Forward passes in which images stand at `places`, whatever tokens are there: transformers takes every image token
    for a part of an image."""

    def at_places(ids: Tensor, inputs_embeds: Tensor, **features: Any) -> tuple[Tensor, Tensor]:
        found = places[..., None].to(inputs_embeds.device)
        return found, torch.zeros_like(found)

    module.model.get_placeholder_mask = at_places
    try:
        yield
    finally:
        del module.model.get_placeholder_mask


def run(module: Any, sight: Sight | None, inputs: Mapping[str, Any]) -> Any:
    """The module's forward pass. `inputs` without `position_ids` get the sight's."""
    if sight is None:
        return module(**inputs)
    with standing(module, sight.places):
        return module(**({"position_ids": sight.positions} | sight.inputs() | dict(inputs)))
