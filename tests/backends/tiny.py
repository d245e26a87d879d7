"""Tiny models for tests of backends."""

from __future__ import annotations

from pathlib import Path

from flowrl.backends.models import materialise
from flowrl.graph.graph import Model

SHAPE = {
    "architecture": "qwen2",
    "tokenizer": "characters",
    "hidden_size": 32,
    "layers": 2,
    "heads": 2,
    "kv_heads": 1,
    "ffn_size": 64,
    "max_positions": 64,
    "tie_embeddings": True,
}


def tiny_model(**changes: object) -> Model:
    return Model(name="policy", source="inline", dtype="float32", inline=SHAPE | changes)


def make_tiny(out: Path, seed: int = 0, **changes: object) -> Path:
    """A Hugging Face folder with a two-layer Qwen2 of 32 dims."""
    return materialise(tiny_model(**changes), Path("."), out, seed)
