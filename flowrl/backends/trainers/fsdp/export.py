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

from flowrl.backends.trainers.fsdp.checkpoint import MODEL, Stored

FILE_BYTES = 4 * 2**30
"""Most bytes of one weight file."""


def export_checkpoint(
    checkpoint_folder: Path, model_folder: Path, out: Path, dtype: str | None = None, file_bytes: int = FILE_BYTES
) -> Path:
    """Write config, tokenizer (with its template) and weights into `out`, as transformers and vLLM load them.

    `checkpoint_folder` is what a trainer's `save` filled, `model_folder` the folder the role started from (for the
    tokenizer), `dtype` that of the weights (None: the model's). Raises FlowError FR0831 if the checkpoint is not whole.
    """
    stored = Stored(checkpoint_folder)
    kind = dtype or stored.dtype
    out.mkdir(parents=True, exist_ok=True)
    for file in sorted(model_folder.iterdir()):
        if file.is_file() and not _is_replaced(file.name):
            shutil.copyfile(file, out / file.name)
    config = json.loads((checkpoint_folder / "config.json").read_text(encoding="utf-8"))
    (out / "config.json").write_text(json.dumps(config | {"dtype": kind}, indent=2), encoding="utf-8")
    _write_weights(stored, getattr(torch, kind), out, file_bytes)
    return out


def _is_replaced(name: str) -> bool:
    """Weights, in whatever format, and what names them; the config is written anew."""
    return name == "config.json" or ".safetensors" in name or name.endswith((".bin", ".bin.index.json", ".pt", ".gguf"))


def _write_weights(stored: Stored, dtype: torch.dtype, out: Path, file_bytes: int) -> None:
    groups = _groups(stored, dtype, file_bytes)
    if len(groups) == 1:
        save_file(dict(_tensors(stored, groups[0], dtype)), out / "model.safetensors", metadata={"format": "pt"})
        return
    places: dict[str, str] = {}
    for number, names in enumerate(groups, start=1):
        file = f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        save_file(dict(_tensors(stored, names, dtype)), out / file, metadata={"format": "pt"})
        places |= dict.fromkeys(names, file)
    size = sum(_nbytes(stored, name, dtype) for name in places)
    index = {"metadata": {"total_size": size}, "weight_map": places}
    (out / "model.safetensors.index.json").write_text(json.dumps(index, indent=2), encoding="utf-8")


def _groups(stored: Stored, dtype: torch.dtype, file_bytes: int) -> list[list[str]]:
    """Names of the tensors of each file, in order, each file within `file_bytes` unless one tensor is larger."""
    groups: list[list[str]] = [[]]
    room = file_bytes
    for key in stored.names():
        if not key.startswith(f"{MODEL}/"):
            continue
        name = key.removeprefix(f"{MODEL}/")
        nbytes = _nbytes(stored, name, dtype)
        if groups[-1] and nbytes > room:
            groups.append([])
            room = file_bytes
        groups[-1].append(name)
        room -= nbytes
    return groups


def _nbytes(stored: Stored, name: str, dtype: torch.dtype) -> int:
    return torch.Size(stored.shape(f"{MODEL}/{name}")).numel() * dtype.itemsize


def _tensors(stored: Stored, names: list[str], dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    for name in names:
        shape = stored.shape(f"{MODEL}/{name}")
        yield name, stored.rows(f"{MODEL}/{name}", shape, 0, shape[0]).to(dtype)
