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
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard

from flowrl.backends.contract import Bytes, TensorSpec
from flowrl.diag.diagnostic import InternalError


@dataclass(frozen=True, slots=True)
class Part:
    """Rows [start, stop) of a full tensor of `shape`; `local` is the memory that holds them."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int
    local: Tensor


def parts(module: nn.Module) -> Iterator[Part]:
    """This rank's part of each parameter, in the module's order; a tied parameter once, as safetensors has it."""
    for name, parameter in module.named_parameters():
        if isinstance(module, FSDPModule) and not isinstance(parameter, DTensor):
            raise InternalError(f"{name} is gathered; its shards are elsewhere")
        yield part_of(name, parameter.detach())


def part_of(name: str, tensor: Tensor) -> Part:
    if not isinstance(tensor, DTensor):
        return Part(name, tuple(tensor.shape), 0, tensor.shape[0], tensor)
    if tuple(tensor.placements) != (Shard(0),):
        raise InternalError(f"{name} is placed {tensor.placements}")
    rows = tensor.shape[0]
    size = -(-rows // tensor.device_mesh.size())
    start = min(tensor.device_mesh.get_local_rank() * size, rows)
    local = tensor.to_local()
    return Part(name, tuple(tensor.shape), start, start + local.shape[0], local)


@torch.no_grad()
def write(own: Iterable[Part], specs: Sequence[TensorSpec], buffer: Bytes, dtype: torch.dtype) -> None:
    """Write this rank's rows of parameters into the buffer, cast to `dtype` on the way: one pass over memory, each
    parameter by itself, with no copy of the model in between."""
    for part, spec in zip(own, specs, strict=True):
        if part.local.numel():
            place = torch.from_numpy(_rows(spec, part, buffer)).view(dtype).view(part.local.shape)
            place.copy_(part.local)


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
        raw = torch.from_numpy(_rows(spec, part, buffer).copy())
        part.local.copy_(raw.view(getattr(torch, spec.dtype)).view(part.local.shape))


def _rows(spec: TensorSpec, part: Part, buffer: Bytes) -> Bytes:
    """The bytes of the part's rows in the buffer."""
    row_bytes = spec.nbytes // max(1, part.shape[0])
    return buffer[spec.offset + part.start * row_bytes : spec.offset + part.stop * row_bytes]
