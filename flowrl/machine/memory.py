"""Bytes and shares of memory that follow from no shape: contexts of processes, what engines hold beside their weights.

Frozen values, a part of a Profile (`memory`); `MEMORY` is read from catalogue/memory.toml, which has the figures with
their sources. Knows no formula.
"""

from __future__ import annotations

import tomllib
from importlib.resources import files

import msgspec


class EngineMemory(msgspec.Struct, frozen=True, kw_only=True):
    """One generation of an inference engine, on one device."""

    sampler_bytes: float
    """The most that sampling holds at once of one logit (of a sequence and a token of the vocabulary)."""
    graph_bytes: float
    """Captured steps: of one layer and one size of batch."""
    graphs_inside: bool
    """Whether graphs are a part of the engine's share of the device, or come on top of it."""
    inside_bytes: float
    """Of the process, counted in the engine's share: workspaces of libraries, and the context where it counts it."""
    outside_bytes: float
    """Of the process, on top of the share: the CUDA context, where the engine looks at the device after making it."""
    collective_bytes: float
    """Buffers of NCCL and of the engine's own all-reduce, if it has more than one device."""
    asleep_bytes: float
    """Blocks that stay while the engine sleeps, beside its process, buffers and graphs."""
    staged: bool
    """Whether weights and cache can be woken one after the other."""
    layerwise: bool
    """Whether new weights of an engine in fp8 are kept until their layer is complete, to be quantised together."""
    source: str = "assumed"


class MemoryConstants(msgspec.Struct, frozen=True, kw_only=True):
    """Of devices, hosts and engines."""

    driver_bytes: float
    """Of a GPU's memory as its card says: what the driver keeps to itself."""
    context_bytes: float
    """One GPU process of a trainer or scorer: context, cuBLAS, NCCL."""
    cpu_process_bytes: float
    """One process on a CPU that has imported torch and transformers."""
    reserve_share: float
    """Of a device: blocks that allocators cannot use again."""
    growth_share: float
    """Of what an op of a trainer works with: blocks that its allocator still holds when an engine wakes beside it."""
    host_process_bytes: float
    """Host memory of one rank's process on a node with GPUs: libraries and pinned staging."""
    host_reserve_share: float
    """Of a host's memory: operating system, file cache, object store in use."""
    bucket_bytes: float
    """Weights are sent in pieces of so much, or of one tensor if it is larger."""
    engine: dict[str, EngineMemory]
    """By backend, `vllm`, or backend and generation, `vllm@0.8`."""
    source: str = "assumed"


MEMORY: MemoryConstants = msgspec.convert(
    tomllib.loads(files("flowrl.machine").joinpath("catalogue/memory.toml").read_text(encoding="utf-8")),
    MemoryConstants,
)
