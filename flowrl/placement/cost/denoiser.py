"""A denoiser's work and memory: passes of a diffusion transformer over an image's patches and the prompt's text.

A sample is `denoise_steps` passes of one length. Not modelled, and so not in the sums: the time of text encoders and
image decoder, kept latents, and the larger of the two kinds of block while it is gathered.
"""

from __future__ import annotations

from flowrl.graph.graph import Op
from flowrl.graph.params import GenerateParams, UpdateParams
from flowrl.machine.denoiser import DenoiserShape
from flowrl.machine.shape import ModelShape
from flowrl.placement.cost.ledger import Given, line
from flowrl.placement.cost.placed import Placed, model_inputs
from flowrl.plan.plan import LedgerLine

DENOISE_STEPS = 28
SIDE_PIXELS = 1024
"""What FLUX.1-dev's card uses where `generate` says nothing."""


def image_lengths(
    params: GenerateParams, shape: ModelShape | None, key: str
) -> tuple[Given, Given, Given, Given, Given] | None:
    """prompt most and mean, response most, mean and tail of one pass, all in tokens of the transformer; None for a
    model of tokens."""
    if not isinstance(shape, DenoiserShape):
        return None
    height, width = (int(params.extra.get(side, SIDE_PIXELS)) for side in ("height", "width"))
    text = Given(shape.text_tokens, shape.origin)
    patches = Given(shape.tokens_of(height, width) - shape.text_tokens, f"{key}: patches of {height} x {width} pixels")
    return text, text, patches, patches, patches


def denoise_passes(params: GenerateParams, op: Op, shape: ModelShape | None) -> Given | None:
    """Forward passes of one sample in `op`: its steps, in an update the share of them that is trained on."""
    if not isinstance(shape, DenoiserShape):
        return None
    steps = int(params.extra.get("denoise_steps", DENOISE_STEPS))
    if isinstance(op.params, UpdateParams) and op.params.action_share is not None:
        return Given(steps * op.params.action_share, f"action_share {op.params.action_share:g} of {steps} steps")
    return Given(steps, f"{steps} denoise_steps")


def sampler_lines(placed: Placed) -> list[LedgerLine]:
    """What a sampler holds on a device: the transformer, and what encodes text and decodes images."""
    shape = placed.model
    assert isinstance(shape, DenoiserShape)
    inputs = {**model_inputs(placed), "Q": Given(shape.companion_parameters, shape.origin)}
    role = placed.role.name
    return [
        line("weights", role, "bytes", "w*P", inputs),
        line("text encoders and image decoder", role, "bytes", "w*Q", inputs),
    ]


def pass_seconds(
    placed: Placed, tokens: Given, rates: dict[str, Given], passes: Given, rows: Given
) -> list[LedgerLine]:
    """Seconds of `rows` samples on one rank: 2 operations per parameter that a token meets, and attention of every
    token to every other."""
    shape = placed.model
    inputs = {
        **model_inputs(placed),
        **rates,
        "Pm": Given(shape.multiplied_parameters, shape.origin),
        "S": tokens,
        "N": rows,
        "k": passes,
    }
    return [line("denoising", placed.role.name, "seconds", "N*k*S*(2*Pm + 4*L*q*S)/X", inputs)]
