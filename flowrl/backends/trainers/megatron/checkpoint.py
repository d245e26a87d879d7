"""A trainer's state on disk: each rank's boxes of every full tensor, to be read back in any layout.

The files are those of fsdp/checkpoint.py, with Hugging Face's names, but for how a rank's part is written: {key:
{"shape", "boxes": [[row, rows, column, columns, name in the file], ...]}}. So either backend goes on from the other's.
Parameters are the optimizer's float32 ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from flowrl.backends.trainers.fsdp.checkpoint import MODEL, OPTIMIZER, Stored
from flowrl.backends.trainers.megatron.model import full_shapes, save_config
from flowrl.backends.trainers.megatron.model_rank import MegatronRank
from flowrl.backends.trainers.megatron.names import Box
from flowrl.backends.trainers.megatron.optimizer import Own, moments
from flowrl.backends.trainers.megatron.weights import Shard
from flowrl.diag.diagnostic import InternalError


def save(folder: Path, rank: MegatronRank) -> None:
    """Write this rank's files into `folder`, which exists."""
    shapes = full_shapes(rank.config, rank.facts)
    prefixes = [MODEL, *(f"{OPTIMIZER}/{name}" for name in _moment_names(rank))]
    entries: dict[str, Any] = {
        f"{prefix}/{name}": {"shape": list(shape), "boxes": []} for prefix in prefixes for name, shape in shapes.items()
    }
    file: dict[str, Tensor] = {}
    for key, box, values in _own_boxes(rank):
        boxes = entries[key]["boxes"]
        inside = f"{key}/{len(boxes)}"
        boxes.append([box.row, box.rows, box.column, box.columns, inside])
        file[inside] = values.detach().contiguous().cpu()
    name = f"rank-{rank.setup.rank}"
    save_file(file, folder / f"{name}.safetensors")
    index = {
        "ranks": rank.setup.world_size,
        "dtype": str(rank.dtype).removeprefix("torch."),
        "counters": _counters(rank),
        "tensors": entries,
    }
    (folder / f"{name}.json").write_text(json.dumps(index, indent=1), encoding="utf-8")
    if rank.setup.rank == 0 and rank.setup.model is not None:
        save_config(rank.config, rank.setup.model.head, folder)


@torch.no_grad()
def restore(folder: Path, rank: MegatronRank) -> None:
    """Read what `save` of this backend or of `fsdp` wrote, whatever the layout then. Raises FlowError FR0831 if it is
    another model's."""
    stored = Stored(folder)
    shapes = full_shapes(rank.config, rank.facts)
    rank.fill(_Source(stored, MODEL, shapes))
    optimizer = _optimizer(rank)
    optimizer.moving.state.clear()
    names = sorted({key.split("/", 2)[1] for key in stored.names() if key.startswith(f"{OPTIMIZER}/")})
    if not names and not stored.counters:
        return
    for shard, own in _own(rank):
        state: dict[str, Any] = {"step": torch.tensor(float(stored.counters["step"]))}
        for name in names:
            state[name] = torch.empty_like(own.master)
            _fill(shard, own, state[name], _Source(stored, f"{OPTIMIZER}/{name}", shapes))
        optimizer.moving.state[own.master] = state


class _Source:
    """Full tensors of a checkpoint, under one prefix of its keys."""

    def __init__(self, stored: Stored, prefix: str, shapes: dict[str, tuple[int, ...]]) -> None:
        self._stored, self._prefix, self._shapes = stored, prefix, shapes

    def box(self, box: Box) -> Tensor | None:
        rows = self._stored.rows(f"{self._prefix}/{box.name}", self._shapes[box.name], box.row, box.row + box.rows)
        return rows.view(box.rows, -1)[:, box.column : box.column + box.columns]


def _fill(shard: Shard, own: Own, flat: Tensor, source: _Source) -> None:
    from flowrl.backends.trainers.megatron.weights import fill

    fill(shard, flat, own.start, source)


def _own_boxes(rank: MegatronRank) -> Iterator[tuple[str, Box, Tensor]]:
    for shard, own in _own(rank):
        tensors = {MODEL: own.master, **{f"{OPTIMIZER}/{name}": value for name, value in moments(own).items()}}
        for box in shard.boxes(own.start, own.stop) if shard.speaks else ():
            for prefix, flat in tensors.items():
                yield f"{prefix}/{box.name}", box, shard.part(flat, own.start, box)


def _own(rank: MegatronRank) -> Iterator[tuple[Shard, Own]]:
    optimizer = _optimizer(rank)
    for shard in rank.shards:
        own = optimizer.own(shard.parameter)
        if own is not None:
            yield shard, own


def _optimizer(rank: MegatronRank) -> Any:
    if rank.optimizer is None:
        raise InternalError(f"`{rank.setup.role.name}` has no optimizer")
    return rank.optimizer


def _states(rank: MegatronRank) -> Any:
    return next((state for state in _optimizer(rank).moving.state.values() if state), {})


def _moment_names(rank: MegatronRank) -> list[str]:
    return [name for name, value in _states(rank).items() if isinstance(value, Tensor) and value.dim()]


def _counters(rank: MegatronRank) -> dict[str, int]:
    """How many updates the optimizer has made: the same for every parameter."""
    states = _states(rank)
    return {"step": int(states["step"])} if "step" in states else {}
