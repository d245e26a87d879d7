"""From a trainer's checkpoint to a Hugging Face folder: full tensors put together from the ranks' rows.

Works on files alone: no model is built and no rank has to run.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from flowrl.backends.trainers.fsdp.checkpoint import Stored
from flowrl.backends.trainers.fsdp.stored import Adapted, Trained, Weights

FILE_BYTES = 4 * 2**30
"""Most bytes of one weight file."""
PIPELINE, DENOISER = "model_index.json", "transformer"
"""What a denoiser's folder has, and its part that is trained."""


def export_checkpoint(
    checkpoint_folder: Path, model_folder: Path, out: Path, dtype: str | None = None, file_bytes: int = FILE_BYTES
) -> Path:
    """Write config, tokenizer (with its template) and weights into `out`, as transformers and vLLM load them.

    `checkpoint_folder` is what a trainer's `save` filled, `model_folder` the folder the role started from, whose
    tokenizer is copied; where adapters were trained they are merged into its weights. `dtype` is that of the weights
    (None: the model's). Raises FlowError FR0831 if the checkpoint is not whole, or has adapters of another model.
    """
    if (model_folder / PIPELINE).is_file():
        return _export_denoiser(checkpoint_folder, model_folder, out, dtype, file_bytes)
    stored = Stored(checkpoint_folder)
    kind = dtype or stored.dtype
    out.mkdir(parents=True, exist_ok=True)
    for file in sorted(model_folder.iterdir()):
        if file.is_file() and not _is_replaced(file.name):
            shutil.copyfile(file, out / file.name)
    config = json.loads((checkpoint_folder / "config.json").read_text(encoding="utf-8"))
    (out / "config.json").write_text(json.dumps(config | {"dtype": kind}, indent=2), encoding="utf-8")
    weights = Trained(stored) if stored.lora is None else Adapted(stored, model_folder, stored.lora)
    _write_weights(weights, getattr(torch, kind), out, file_bytes)
    return out


def _export_denoiser(
    checkpoint_folder: Path, model_folder: Path, out: Path, dtype: str | None, file_bytes: int
) -> Path:
    """A pipeline as `diffusers` loads it: everything as it was but the transformer."""
    stored = Stored(checkpoint_folder)
    shutil.copytree(
        model_folder,
        out,
        dirs_exist_ok=True,
        ignore=lambda folder, _: [DENOISER] if Path(folder) == model_folder else [],
    )
    own = out / DENOISER
    own.mkdir(exist_ok=True)
    shutil.copyfile(checkpoint_folder / "config.json", own / "config.json")
    stem = "diffusion_pytorch_model"
    _write_weights(Trained(stored), getattr(torch, dtype or stored.dtype), own, file_bytes, stem)
    return out


def _is_replaced(name: str) -> bool:
    """Weights, in whatever format, and what names them; the config is written anew."""
    return name == "config.json" or ".safetensors" in name or name.endswith((".bin", ".bin.index.json", ".pt", ".gguf"))


def _write_weights(weights: Weights, dtype: torch.dtype, out: Path, file_bytes: int, stem: str = "model") -> None:
    groups = _groups(weights, dtype, file_bytes)
    if len(groups) == 1:
        save_file(dict(_tensors(weights, groups[0], dtype)), out / f"{stem}.safetensors", metadata={"format": "pt"})
        return
    places: dict[str, str] = {}
    for number, names in enumerate(groups, start=1):
        file = f"{stem}-{number:05d}-of-{len(groups):05d}.safetensors"
        save_file(dict(_tensors(weights, names, dtype)), out / file, metadata={"format": "pt"})
        places |= dict.fromkeys(names, file)
    size = sum(_nbytes(weights, name, dtype) for name in places)
    index = {"metadata": {"total_size": size}, "weight_map": places}
    (out / f"{stem}.safetensors.index.json").write_text(json.dumps(index, indent=2), encoding="utf-8")


def _groups(weights: Weights, dtype: torch.dtype, file_bytes: int) -> list[list[str]]:
    """Names of the tensors of each file, in order, each file within `file_bytes` unless one tensor is larger."""
    groups: list[list[str]] = [[]]
    room = file_bytes
    for name in weights.names():
        nbytes = _nbytes(weights, name, dtype)
        if groups[-1] and nbytes > room:
            groups.append([])
            room = file_bytes
        groups[-1].append(name)
        room -= nbytes
    return groups


def _nbytes(weights: Weights, name: str, dtype: torch.dtype) -> int:
    return torch.Size(weights.shape(name)).numel() * dtype.itemsize


def _tensors(weights: Weights, names: list[str], dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    for name in names:
        yield name, weights.whole(name).to(dtype)
