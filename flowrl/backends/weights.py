"""The weight buffer's layout and bytes, for backends that hold whole tensors.

Takes named tensors, gives TensorSpecs and copies bytes; dtypes are spelled as a Model spells them. Must not know
transports, versions or shards (a sharded trainer writes its own rows in trainers/fsdp/weights.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from flowrl.backends.contract import Bytes, TensorSpec
from flowrl.diag.diagnostic import InternalError

ALIGNMENT_BYTES = 64
"""Every tensor starts at a multiple, so that its bytes can be viewed as any dtype."""


def layout(tensors: Iterable[tuple[str, tuple[int, ...]]], dtype: torch.dtype) -> tuple[TensorSpec, ...]:
    """Place tensors (name, shape) one after another, each in `dtype`."""
    specs: list[TensorSpec] = []
    offset, kind = 0, str(dtype).removeprefix("torch.")
    for name, shape in tensors:
        nbytes = math.prod(shape) * dtype.itemsize
        specs.append(TensorSpec(name, kind, shape, offset, nbytes))
        offset += -(-nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return tuple(specs)


def bytes_of(tensor: Tensor) -> Bytes:
    """The tensor's bytes, uint8 [nbytes], shared with it where it is contiguous and on the CPU."""
    return tensor.detach().contiguous().cpu().reshape(-1).view(torch.uint8).numpy()


def tensor_of(spec: TensorSpec, buffer: Bytes) -> Tensor:
    """A copy of the tensor that `spec` describes, in the buffer's dtype."""
    raw = torch.from_numpy(buffer[spec.offset : spec.offset + spec.nbytes].copy())
    return raw.view(getattr(torch, spec.dtype)).view(spec.shape)


@torch.no_grad()
def read_into(parameters: Mapping[str, Tensor], manifest: Sequence[TensorSpec], buffer: Bytes) -> None:
    """Copy every tensor of the buffer into the parameter of its name, in place, cast to the parameter's dtype.

    Raises InternalError unless the names are the same: a parameter left out would keep old weights unnoticed.
    """
    odd = {spec.name for spec in manifest} ^ set(parameters)
    if odd:
        raise InternalError(f"weights that only one side of the edge has: {', '.join(sorted(odd)[:5])}")
    for spec in manifest:
        target = parameters[spec.name]
        if target.device.type == "cpu" and str(target.dtype) == f"torch.{spec.dtype}" and target.is_contiguous():
            np.copyto(bytes_of(target), buffer[spec.offset : spec.offset + spec.nbytes])
        else:
            target.copy_(tensor_of(spec, buffer))
