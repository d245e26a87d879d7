"""Tiny models for tests of backends."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForTokenClassification

from flowrl.backends.models import materialise
from flowrl.backends.text import Codec
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


def make_scored(folder: Path, out: Path) -> Path:
    """The model of a folder with a head of its own for scores, not zero, and its tokenizer."""
    torch.manual_seed(3)
    model = AutoModelForTokenClassification.from_pretrained(folder, num_labels=1)
    torch.nn.init.normal_(model.score.weight)
    model.save_pretrained(out)
    Codec(folder).save(out)
    return out
