"""A rank's own part of the parameters: its rows of each, by name. What leaves in weight buffers and checkpoints.

FSDP2 cuts a parameter along its first dim into equal runs of rows, the last one shorter; a plain module has all rows.
No rank ever gathers a full tensor here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Replicate, Shard

from flowrl.backends.casting import Pair, cast, castable
from flowrl.backends.contract import Bytes, TensorSpec
from flowrl.diag.diagnostic import InternalError

CAST_TOGETHER = 2**26
"""Numbers cast in one go: enough to share out among threads, and merged adapters need not all be held at once."""


@dataclass(frozen=True, slots=True)
class Part:
    """Rows [start, stop) of a full tensor of `shape`; `local` is the memory that holds them."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int
    local: Tensor
    copy: int = 0
    """Which of several equal copies it is of; the first is the one that is written."""
    columns: tuple[int, int] | None = None
    """Columns [first, last) of the rows, where tensor parallelism cuts them; None: all."""


def parts(module: nn.Module) -> Iterator[Part]:
    """This rank's part of each parameter, in the module's order; a tied parameter once, as safetensors has it."""
    cut: Cut | None = None
    for name, parameter in named(module):
        if cut is None or not isinstance(parameter, DTensor) or parameter.device_mesh is not cut.mesh:
            cut = Cut.of(parameter)
        yield part_of(name, parameter, cut)


def named(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The module's parameters by name: shards, if it has any."""
    for name, parameter in module.named_parameters():
        if isinstance(module, FSDPModule) and not isinstance(parameter, DTensor):
            raise InternalError(f"{name} is gathered; its shards are elsewhere")
        yield name, parameter


@dataclass(frozen=True, slots=True)
class Cut:
    """Which of how many ranks over a mesh this is: asking a mesh takes longer than all else that a part needs."""

    mesh: DeviceMesh | None
    ranks: int = 1
    rank: int = 0
    copy: int = 0
    """Which of several copies its rows are of (`shard_devices`)."""
    tp: tuple[int, int] = (1, 0)
    """Ranks that cut the matrix further, and which of them this is."""

    @staticmethod
    def of(tensor: Tensor) -> Cut:
        if not isinstance(tensor, DTensor):
            return Cut(None)
        mesh = tensor.device_mesh
        if mesh.ndim == 1:
            return Cut(mesh, mesh.size(), mesh.get_local_rank(), _copy_over_tp(mesh))
        if mesh.mesh_dim_names == ("dp", "tp"):
            return Cut(mesh, mesh.size(0), mesh.get_local_rank(0), 0, (mesh.size(1), mesh.get_local_rank(1)))
        return Cut(mesh, mesh.size(1), mesh.get_local_rank(1), mesh.get_local_rank(0))


def _copy_over_tp(mesh: DeviceMesh) -> int:
    """Of what tensor parallelism leaves whole (norms), which of its ranks' copies this is."""
    root = mesh._get_root_mesh()
    return root.get_local_rank("tp") if "tp" in (root.mesh_dim_names or ()) else 0


def part_of(name: str, tensor: Tensor, cut: Cut | None = None) -> Part:
    shape = tuple(tensor.shape)
    if not isinstance(tensor, DTensor):
        return Part(name, shape, 0, shape[0], tensor.detach())
    cut = cut or Cut.of(tensor)
    if cut.tp[0] > 1:
        return _part_of_tp(name, tensor, cut)
    if tuple(tensor.placements) not in ((Shard(0),), (Replicate(), Shard(0))):
        raise InternalError(f"{name} is placed {tensor.placements}")
    start = min(cut.rank * -(-shape[0] // cut.ranks), shape[0])
    with torch.no_grad():  # the memory itself, and no node of a graph, which takes ten times as long
        local = tensor.to_local()
    return Part(name, shape, start, start + local.shape[0], local, cut.copy)


def _part_of_tp(name: str, tensor: DTensor, cut: Cut) -> Part:
    """Rows, or columns, are cut over tp; then the rows of what is left over dp."""
    shape, (ranks, rank) = tuple(tensor.shape), cut.tp
    kind = tensor.placements[1]
    with torch.no_grad():
        local = tensor.to_local()
    first, last = 0, shape[0]
    if kind.is_shard(0):
        first, last = _chunk(shape[0], ranks, rank)
    low, high = _chunk(last - first, cut.ranks, cut.rank)
    columns = _chunk(shape[1], ranks, rank) if kind.is_shard(1) else None
    copy = rank if kind.is_replicate() else 0
    return Part(name, shape, first + low, first + high, local, copy, columns)


def _chunk(size: int, parts: int, index: int) -> tuple[int, int]:
    """torch.chunk's: equal parts rounded up, the last ones smaller or empty."""
    each = -(-size // parts)
    return min(index * each, size), min((index + 1) * each, size)


@torch.no_grad()
def write(own: Iterable[Part], specs: Sequence[TensorSpec], buffer: Bytes, dtype: torch.dtype) -> None:
    """Write this rank's rows of parameters into the buffer, cast to `dtype` on the way: one pass over memory, with no
    copy of the model in between."""
    threads, waiting, held = torch.get_num_threads(), list[Pair](), 0
    published = torch.from_numpy(buffer).view(dtype)
    for part, spec in zip(own, specs, strict=True):
        if part.copy:
            continue
        if part.columns is not None:
            _box(spec, part, published).copy_(part.local)
            continue
        count = part.local.numel()
        start = (spec.offset + part.start * _row_bytes(spec, part)) // dtype.itemsize
        place, source = published[start : start + count], part.local.view(-1)
        if not castable(place, source):
            place.copy_(source)
            continue
        waiting.append((place, source))
        held += count
        if held >= CAST_TOGETHER:
            cast(waiting, threads)
            waiting, held = [], 0
    cast(waiting, threads)


@torch.no_grad()
def read(parts: Iterable[Part], specs: Sequence[TensorSpec], buffer: Bytes) -> None:
    """Copy this rank's rows of parameters out of the buffer, in place."""
    known: dict[str, Any] = {spec.name: spec for spec in specs}
    own = list(parts)
    odd = {part.name for part in own} ^ set(known)
    if odd:
        raise InternalError(f"weights that only one side of the edge has: {', '.join(sorted(odd)[:5])}")
    for part in own:
        spec = known[part.name]
        if part.columns is not None:
            part.local.copy_(_box(spec, part, torch.from_numpy(buffer.copy()).view(getattr(torch, spec.dtype))))
            continue
        raw = torch.from_numpy(_rows(spec, part, buffer).copy())
        part.local.copy_(raw.view(getattr(torch, spec.dtype)).view(part.local.shape))


def _box(spec: TensorSpec, part: Part, numbers: Tensor) -> Tensor:
    """The part's rows and columns in the buffer's numbers."""
    assert part.columns is not None
    start = spec.offset // numbers.itemsize
    whole = numbers[start : start + spec.nbytes // numbers.itemsize].view(part.shape)
    return whole[part.start : part.stop, part.columns[0] : part.columns[1]]


def _rows(spec: TensorSpec, part: Part, buffer: Bytes) -> Bytes:
    """The bytes of the part's rows in the buffer."""
    row_bytes = _row_bytes(spec, part)
    return buffer[spec.offset + part.start * row_bytes : spec.offset + part.stop * row_bytes]


def _row_bytes(spec: TensorSpec, part: Part) -> int:
    return spec.nbytes // max(1, part.shape[0])
