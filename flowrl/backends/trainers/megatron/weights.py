"""A rank's part of every full tensor: read from a folder, a weight buffer or a checkpoint, and written to a buffer.

No rank ever gathers a full tensor. Each copies the boxes (names.py) that lie in its own parameters; the data parallel
ranks, which hold the same ones, share the writing out by rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import safe_open
from torch import Tensor

from flowrl.backends.contract import Bytes, TensorSpec
from flowrl.backends.trainers.megatron.groups import Groups
from flowrl.backends.trainers.megatron.model import unwrapped
from flowrl.backends.trainers.megatron.names import Box, Facts, Run, boxes, is_repeated, runs
from flowrl.diag.diagnostic import FlowError, InternalError, diagnose
from flowrl.graph.graph import Model


@dataclass(frozen=True, slots=True)
class Shard:
    """A parameter of this rank."""

    name: str
    """Megatron Core's, with layers counted through all stages."""
    parameter: Any
    runs: tuple[Run, ...]
    columns: int
    speaks: bool
    """Whether this rank writes it: of what other tp ranks or another stage hold too, one does."""

    @property
    def size(self) -> int:
        return self.parameter.numel()

    def boxes(self, start: int = 0, stop: int | None = None) -> Iterator[Box]:
        """Of its elements [start, stop)."""
        return boxes(self.runs, self.columns, start, self.size if stop is None else stop)

    def part(self, flat: Tensor, start: int, box: Box) -> Tensor:
        """The box's elements in `flat`, which holds this parameter's elements from `start` on."""
        first = box.local_row * self.columns + box.local_column - start
        return flat[first : first + box.rows * box.columns].view(box.rows, box.columns)


class Source(Protocol):
    """Where full tensors lie."""

    def box(self, box: Box) -> Tensor | None:
        """[rows, columns] in the source's dtype; None if it has no such tensor."""
        ...


def shards(module: Any, facts: Facts, groups: Groups) -> list[Shard]:
    """In the module's order; a parameter that two modules share once."""
    module = unwrapped(module)
    first = module.decoder.layers[0].layer_number - 1 if len(module.decoder.layers) else 0
    found: list[Shard] = []
    for local_name, parameter in module.named_parameters():
        name = _through_stages(local_name, first)
        rows, columns = parameter.shape[0], parameter.numel() // parameter.shape[0]
        repeated = is_repeated(name) and groups.tp_rank > 0
        copy = name == "output_layer.weight" and facts.tied
        own = runs(name, rows, columns, facts, groups.tp, groups.tp_rank)
        found.append(Shard(name, parameter, own, columns, not repeated and not copy))
    return found


@torch.no_grad()
def fill(shard: Shard, flat: Tensor, start: int, source: Source) -> list[str]:
    """Set `flat`, the shard's elements from `start` on, to what the source has; padding of the vocabulary becomes 0.
    Gives the names that the source lacks, whose elements are 0."""
    flat.zero_()
    missing: list[str] = []
    for box in shard.boxes(start, start + flat.numel()):
        values = source.box(box)
        if values is None:
            missing.append(box.name)
        else:
            shard.part(flat, start, box).copy_(values)
    return missing


@torch.no_grad()
def write(own: Sequence[Shard], groups: Groups, specs: Sequence[TensorSpec], buffer: Bytes) -> None:
    """Write this rank's share of its parameters into the buffer, in the buffer's dtype."""
    known = {spec.name: spec for spec in specs}
    for shard in own:
        if not shard.speaks:
            continue
        start, stop = _share(shard, groups)
        flat = shard.parameter.detach().view(-1)[start:stop]
        for box in shard.boxes(start, stop):
            _box_of(known[box.name], buffer, box).copy_(shard.part(flat, start, box))


class BufferSource:
    """A weight buffer."""

    def __init__(self, specs: Sequence[TensorSpec], buffer: Bytes) -> None:
        self._specs, self._buffer = {spec.name: spec for spec in specs}, buffer

    def box(self, box: Box) -> Tensor | None:
        spec = self._specs.get(box.name)
        if spec is None:
            return None
        row_bytes = spec.nbytes // max(1, spec.shape[0])
        first = spec.offset + box.row * row_bytes
        # A copy of these rows: torch takes no memory that it must not write to without a warning.
        rows = torch.from_numpy(self._buffer[first : first + box.rows * row_bytes].copy())
        whole = rows.view(getattr(torch, spec.dtype)).view(box.rows, -1)
        return whole[:, box.column : box.column + box.columns]

    def require_only(self, names: Mapping[str, Any]) -> None:
        """Raises InternalError unless the names are the same: a parameter left out would keep old weights unnoticed."""
        odd = set(self._specs) ^ set(names)
        if odd:
            raise InternalError(f"weights that only one side of the edge has: {', '.join(sorted(odd)[:5])}")


class FolderSource:
    """The safetensors files of a Hugging Face folder; only the boxes that are asked for are read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, Any] = {}
        index = folder / "model.safetensors.index.json"
        if index.is_file():
            self._places: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        else:
            self._places = dict.fromkeys(self._opened("model.safetensors").keys(), "model.safetensors")

    def box(self, box: Box) -> Tensor | None:
        name = self._places.get(box.name)
        return None if name is None else cut(self._opened(name).get_slice(box.name), box)

    def _opened(self, name: str) -> Any:
        if name not in self._files:
            self._files[name] = safe_open(self._folder / name, framework="pt")
        return self._files[name]


def cut(piece: Any, box: Box) -> Tensor:
    """The box of a tensor in a file."""
    rows = slice(box.row, box.row + box.rows)
    if len(piece.get_shape()) == 1:
        return piece[rows][:, None]
    return piece[rows, box.column : box.column + box.columns]


def require_whole(missing: Sequence[str], model: Model, folder: Path) -> None:
    """Raises FlowError FR0881 if the folder lacks a tensor. A scalar head that it lacks starts at 0."""
    odd = sorted({name for name in missing if not name.startswith("score.")})
    if odd:
        reason = f"{folder} has no tensor `{odd[0]}`"
        raise FlowError(diagnose("FR0881", model.span, model=model.name, reason=reason))


def _share(shard: Shard, groups: Groups) -> tuple[int, int]:
    """Elements that this data parallel rank writes: whole rows."""
    rows = shard.size // shard.columns
    first, last = (rows * (groups.dp_rank + more) // groups.dp for more in (0, 1))
    return first * shard.columns, last * shard.columns


def _box_of(spec: TensorSpec, buffer: Bytes, box: Box) -> Tensor:
    """The box's place in the buffer."""
    whole = torch.from_numpy(buffer[spec.offset : spec.offset + spec.nbytes]).view(getattr(torch, spec.dtype))
    return whole.view(spec.shape[0], -1)[box.row : box.row + box.rows, box.column : box.column + box.columns]


def _through_stages(name: str, first: int) -> str:
    head, found, rest = name.partition("decoder.layers.")
    if not found or head:
        return name
    number, _, part = rest.partition(".")
    return f"decoder.layers.{int(number) + first}.{part}"
