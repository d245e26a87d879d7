"""Setups, calls and weights for tests of the vLLM generator."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from flowrl.backends.batch import Batch, IntArray
from flowrl.backends.contract import Bytes, Call, RankSetup, Result, TensorSpec
from flowrl.backends.models import materialise
from flowrl.graph.graph import Kind, Model, Op, Role
from flowrl.graph.params import GenerateParams
from flowrl.graph.types import Granularity
from flowrl.plan.plan import Layout

LONG = "one prompt that is longer than a block of the cache: 12345+67890="
PROMPTS = ("12+34=", "9+9=", LONG, LONG[:-3] + "1=")


def tiny_model(tied: bool) -> Model:
    shape = {"architecture": "qwen2", "tokenizer": "characters", "hidden_size": 64, "layers": 2, "heads": 2}
    shape |= {"kv_heads": 2, "ffn_size": 96, "max_positions": 96, "tie_embeddings": tied}
    return Model(name="policy", source="inline", dtype="float32", inline=shape)


def setup_of(folder: Path, *, tied: bool = True, **changes: object) -> RankSetup:
    role = Role(name="actor_infer", kind=Kind.GENERATOR, model="policy", backend="vllm")
    facts = {"role": role, "model": tiny_model(tied), "model_folder": folder, "layout": Layout(), "max_tokens": 96}
    return RankSetup(**(facts | changes))  # type: ignore[arg-type]


def call_of(samples: int = 2, **params: object) -> Call:
    wanted = GenerateParams(**({"max_response_tokens": 16, "temperature": 0.7} | params))  # type: ignore[arg-type]
    op = Op(
        id="actor_infer.generate",
        role="actor_infer",
        method="generate",
        granularity=Granularity.SAMPLE,
        params=wanted,
    )
    return Call(op=op, step=1, seed=3, samples_per_prompt=samples)


def prompt_rows(ids: Sequence[int] = range(len(PROMPTS))) -> Batch:
    index: IntArray = np.asarray(ids, dtype=np.int64)
    return Batch(index, index, {"prompt": tuple(PROMPTS[i] for i in ids)})


def rows_of(result: Result) -> Batch:
    assert result.batch is not None
    return result.batch


def laid_out(folder: Path) -> tuple[list[TensorSpec], Bytes]:
    """The parameters of a model folder as a trainer would lay them out."""
    manifest: list[TensorSpec] = []
    parts: list[Bytes] = []
    offset = 0
    for name, tensor in sorted(load_file(folder / "model.safetensors").items()):
        raw = tensor.contiguous().view(torch.uint8).reshape(-1).numpy()
        manifest.append(TensorSpec(name, "float32", tuple(tensor.shape), offset, len(raw)))
        padding = np.zeros(-len(raw) % 64, dtype=np.uint8)
        parts += [raw, padding]
        offset += len(raw) + len(padding)
    return manifest, np.concatenate(parts)


def forward_log_probs(folder: Path, row: np.ndarray, temperature: float) -> np.ndarray:
    """log softmax(logits / temperature) of each token after the first, by transformers in float32."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.from_numpy(row.astype(np.int64))[None]
    with torch.no_grad():
        log_probs = (model(ids).logits[0, :-1] / temperature).log_softmax(-1)
    return log_probs.gather(-1, ids[0, 1:, None])[:, 0].numpy()


def make_folders(root: Path) -> dict[str, Path]:
    """Two models tied, two untied; `b` has other weights than `a`, larger so that outputs differ for sure."""
    made = {
        f"{name}-{tied}": materialise(tiny_model(tied), Path(), root / f"{name}-{tied}", seed)
        for tied in (True, False)
        for seed, name in enumerate("ab")
    }
    for folder in made.values():
        weights = {name: 3 * tensor for name, tensor in load_file(folder / "model.safetensors").items()}
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return made
