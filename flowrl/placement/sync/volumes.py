"""A colocated resharding as HybridFlow measures it (arXiv:2409.19256, section 5.4, table 2): what each device receives,
the most that it holds of the model, and what it holds twice.

Takes two cuts on the same devices and a way; gives a Volume in elements, computed by the overlap plan. Knows no links.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flowrl.placement.sync.cuts import Cut
from flowrl.placement.sync.overlap import Ends, held, traffic
from flowrl.placement.sync.tensors import Tensors


@dataclass(frozen=True, slots=True)
class Volume:
    """Elements, by receiving rank."""

    received: tuple[int, ...]
    """From other devices."""
    peak: tuple[int, ...]
    """Held at the end of the resharding, weights of training included."""
    redundant: tuple[int, ...]
    """Weights of training that generation cannot use where they lie."""


def volumes(
    tensors: tuple[Tensors, ...], source: Cut, target: Cut, way: str, order: Sequence[int] | None = None
) -> Volume:
    """Of `target` on the devices of `source`: its rank i is on device `order[i]`, by default on device i.

    gather: all ranks that hold one copy together gather the model into buffers of its own, of which each keeps its part
    (DeepSpeed-Chat over all ranks, HybridFlow-V over a model-parallel group). shards: each rank takes what it lacks.
    """
    devices = tuple(range(source.ranks))
    order = devices if order is None else tuple(order)
    have = held(tensors, source)
    if way == "gather":
        whole = sum(each.elements for each in tensors)
        own = tuple(have[device] for device in order)
        return Volume(tuple(whole - each for each in own), (whole,) * len(order), own)
    moved = traffic(tensors, source, target, Ends(devices, order, devices, devices))
    received = tuple(map(sum, zip(moved.link_in, moved.network_in, strict=True)))
    unused = tuple(have[device] - local for device, local in zip(order, moved.local, strict=True))
    peak = tuple(need + left for need, left in zip(moved.needed, unused, strict=True))
    return Volume(received, peak, unused)


def strided(source: Cut, tp: int, pp: int) -> tuple[int, ...]:
    """HybridFlow's grouping: ranks of an engine of `tp` x `pp` on a Megatron trainer's devices, at strides of t/tp and
    p/pp, so that the shard that a device trains is a part of the one it generates with."""
    apart, stages = source.tp // tp, source.pp // pp
    found: list[int] = []
    for engine in range(source.ranks // (tp * pp)):
        data, micro = divmod(engine, apart * stages)
        stage_at, tp_at = divmod(micro, apart)
        for stage in range(pp):
            first = source.tp * (data + source.rest * (stage * stages + stage_at))
            found.extend(first + rank * apart + tp_at for rank in range(tp))
    return tuple(found)
