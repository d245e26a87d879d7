"""How weights may travel: transports with their reach, the way that shards go by each, what a hand-over achieves, and
which trainers can name the weights of which models.

Data and pure checks; opens nothing. An edge names its transport, or placement decides.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

import msgspec

WAYS: Mapping[str, str] = {
    "shards": "each rank writes or sends what it holds, each receiver takes what it needs (FlowRL's weight buffers; "
    "HybridFlow's 3D-HybridEngine, arXiv:2409.19256; NVIDIA-NeMo/RL pull 2808)",
    "gather": "the trainer gathers every tensor whole on each of its ranks, and the engine on the same device takes "
    "its part (verl and slime, colocated)",
    "broadcast": "the trainer gathers every tensor whole, and one rank broadcasts it to all ranks of all engines, "
    "which keep their part (OpenRLHF, AReaL, verl's fully_async)",
}
"""How shards become other shards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transport:
    name: str
    across_nodes: bool
    """Whether it reaches devices of another node."""
    on_cpu: bool
    one_device: bool = True
    """Whether both ends may share a device."""
    direct: bool = False
    """Whether the receiver reads the sender's device, so that neither can leave it before the weights are in."""
    way: str = "shards"
    """Of WAYS, unless a plan is asked for another."""
    source: str
    """Where the facts come from."""


TRANSPORTS: Mapping[str, Transport] = {
    each.name: each
    for each in (
        Transport(
            name="shared_memory",
            across_nodes=False,
            on_cpu=True,
            source="shm_open(3): an object is seen by the processes of one host",
        ),
        Transport(
            name="cuda_ipc",
            across_nodes=False,
            on_cpu=False,
            direct=True,
            way="gather",
            source="CUDA C++ Programming Guide, interprocess communication: handles are valid on one node",
        ),
        Transport(
            name="nccl",
            across_nodes=True,
            on_cpu=False,
            one_device=False,
            direct=True,
            way="broadcast",
            source="NCCL refuses two ranks of a communicator on one GPU (`Duplicate GPU detected`)",
        ),
        Transport(name="object_store", across_nodes=True, on_cpu=True, source="Ray: objects are copied between nodes"),
        Transport(name="disk", across_nodes=True, on_cpu=True, source="a folder that all nodes see"),
    )
}

DIRECT = tuple(name for name, transport in TRANSPORTS.items() if transport.direct)
"""Transports that read the sender's memory while the receiver writes: neither can leave the device."""


class SyncRates(msgspec.Struct, frozen=True, kw_only=True):
    """What a hand-over of weights achieves, beside its bytes at peak."""

    link: float
    """Share of a device's link to the others of its node."""
    network: float
    """Share of a device's network cards."""
    tensor_seconds: float
    """One tensor on one receiver: its name, its place, its copy."""
    seconds: float = 0.0
    """The whole hand-over: pausing an engine, flushing its caches, asking all of its processes."""
    bucket_seconds: float = 0.0
    """One piece of several tensors (`memory.bucket_bytes`): handles, a collective's start, a call of the engine."""
    source: str = "assumed"


SYNC: Mapping[str, SyncRates] = msgspec.convert(
    tomllib.loads(files("flowrl.machine").joinpath("catalogue/sync.toml").read_text(encoding="utf-8")),
    dict[str, SyncRates],
)
"""By way, `broadcast`, or way and generation, `broadcast@tensors`."""

HANDS_OVER: Mapping[str, frozenset[str]] = {
    "megatron": frozenset(
        {"deepseek_v2", "deepseek_v3", "gemma2", "gemma3", "glm4", "glm4_moe", "gpt_oss", "kimi_k2", "llama"}
        | {"mistral", "mixtral", "nemotron_h", "qwen2", "qwen2_moe", "qwen2_5_vl", "qwen3", "qwen3_moe", "qwen3_next"}
        | {"qwen3_vl", "qwen3_vl_moe", "qwen3_omni_moe", "qwen3_5", "qwen3_5_moe"}
    ),
}
"""Architectures whose weights a trainer can give under the names of transformers, which generators read. A backend that
is not here trains the module of transformers itself, so that its names are those already; Megatron Core fuses q, k, v
and the two halves of the feed-forward, which has to be undone model by model (Megatron Bridge's supported models:
docs.nvidia.com/nemo/megatron-bridge, Mixtral of mbridge, GLM-4 of slime's megatron_to_hf/glm4.py)."""


def transport_fault(transport: Transport, source: Sequence[str], target: Sequence[str], on_cpu: bool) -> str | None:
    """Why weights cannot go from the devices `source` to the devices `target` by `transport`; None if they can. Devices
    are `nodeN/M` or `GROUP/nodeN/M`."""
    if on_cpu and not transport.on_cpu:
        return f"`{transport.name}` carries memory of GPUs, and here are none"
    shared = sorted(set(source) & set(target))
    if shared and not transport.one_device:
        return f"`{transport.name}` takes each GPU once, and both ends are on {shared[0]}"
    far = sorted({_node(device) for device in target} - {_node(device) for device in source})
    if far and not transport.across_nodes:
        return f"`{transport.name}` stays within a node, and {far[0]} has a receiver and no sender"
    return None


def legal_transports(source: Sequence[str], target: Sequence[str], on_cpu: bool) -> tuple[str, ...]:
    """Names of the transports by which weights can go, in the table's order."""
    return tuple(name for name, each in TRANSPORTS.items() if transport_fault(each, source, target, on_cpu) is None)


def default_transport(source: Sequence[str], target: Sequence[str], on_cpu: bool) -> str:
    """What an edge without one is counted as: shared memory on one node, which is what the runtime does. Between nodes
    of CPUs the object store; of GPUs what direct transport is legal (the trainer's own gather crosses nodes, so handles
    serve where each receiver shares a node with a trainer)."""
    if len({_node(device) for device in (*source, *target)}) == 1:
        return "shared_memory"
    names = ("nccl", "cuda_ipc", "object_store")
    return next(name for name in names if transport_fault(TRANSPORTS[name], source, target, on_cpu) is None)


def _node(device: str) -> str:
    return device.rpartition("/")[0]
