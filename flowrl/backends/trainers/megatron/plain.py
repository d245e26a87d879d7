"""Keys of `engine` that backend `megatron` has one way of. Pure: asked before a run starts and when a rank is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowrl.graph.params import EngineParams

PLAIN: Mapping[str, tuple[Any, ...]] = {
    "packing": (False,),
    "extra": ({},),
    "zero_stage": (None, 1),
    "shard_devices": (None,),
    "cross_entropy": ("whole",),
    "load": ("parts",),
    "gradient_dtype": ("float32",),
    "master_dtype": (None, "float32"),
    "optimizer_offload": (0.0,),
    "parameter_offload": (False,),
    "activation_offload": (False,),
}
"""Each with the values that it may have."""


def odd_keys(engine: EngineParams) -> list[str]:
    """Those with another value, as a flow writes them."""
    return [f"`{name}: {value}`" for name, plain in PLAIN.items() if (value := getattr(engine, name)) not in plain]
