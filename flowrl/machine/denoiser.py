"""DenoiserShape: the numbers of a diffusion transformer that memory and time are made from. A value; reads nothing.

The FLUX family: double blocks, in which image and text tokens have weights of their own and attend to each other, then
single blocks, in which they are one sequence. Not modelled: that a double block is larger than the mean block.
"""

from __future__ import annotations

from dataclasses import dataclass

from flowrl.machine.shape import ModelShape

MLP_RATIO = 4
MODULATION = 6
"""Shift, scale and gate before attention and before the feed-forward."""
SINGLE_MODULATION = 3
TIME_WIDTH = 256
"""Width of the sinusoidal embedding of a time or of a guidance strength."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DenoiserShape(ModelShape):
    """`layers` counts double and single blocks; a token is an image patch or a text token."""

    double_layers: int
    channels: int
    """Of one packed patch."""
    patch_pixels: int
    """Side of the square of pixels that one token stands for."""
    text_width: int
    text_tokens: int
    """Of one prompt, padded."""
    pooled_width: int
    companion_parameters: int
    """Frozen text encoders and image decoder that a sampler loads beside it."""

    @property
    def stream_parameters(self) -> int:
        """Attention and feed-forward of one stream of a double block, biases and norms of queries and keys too."""
        h = self.hidden
        return 4 * (h * h + h) + 2 * MLP_RATIO * h * h + (MLP_RATIO + 1) * h + 2 * self.head_dim

    @property
    def double_parameters(self) -> int:
        """Two streams, each with its modulation."""
        return 2 * (self.stream_parameters + MODULATION * (self.hidden * self.hidden + self.hidden))

    @property
    def single_parameters(self) -> int:
        h = self.hidden
        joined = h * (3 + MLP_RATIO) * h + (3 + MLP_RATIO) * h + (1 + MLP_RATIO) * h * h + h
        return joined + SINGLE_MODULATION * (h * h + h) + 2 * self.head_dim

    @property
    def root_parameters(self) -> int:
        """Embeddings of image, text, time, guidance and pooled text; the last modulation and projection."""
        h = self.hidden
        square = h * h + h
        embeddings = (self.channels + self.text_width) * h + 2 * h
        vectors = 2 * (TIME_WIDTH * h + h + square) + self.pooled_width * h + h + square
        return embeddings + vectors + 2 * square + h * self.channels + self.channels

    @property
    def parameters(self) -> int:
        single = self.layers - self.double_layers
        return self.double_layers * self.double_parameters + single * self.single_parameters + self.root_parameters

    @property
    def layer_parameters(self) -> int:
        """Of the mean block."""
        return (self.parameters - self.root_parameters) // self.layers

    @property
    def multiplied_parameters(self) -> int:
        """What one token is multiplied with: the weights of its own stream; modulations meet one vector a sample."""
        return self.layers * (4 + 2 * MLP_RATIO) * self.hidden * self.hidden

    @property
    def active_parameters(self) -> int:
        return self.multiplied_parameters

    @property
    def largest_tensor(self) -> int:
        return (3 + MLP_RATIO) * self.hidden * self.hidden

    @property
    def output_width(self) -> int:
        return self.channels

    def tokens_of(self, height: int, width: int) -> int:
        """Tokens of one forward pass: patches of the image and text."""
        return -(-height // self.patch_pixels) * -(-width // self.patch_pixels) + self.text_tokens
