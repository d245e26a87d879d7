"""The process group of a role's ranks, and sums over them. Knows no model."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from flowrl.backends.contract import RankSetup
from flowrl.diag.diagnostic import InternalError

TIMEOUT = timedelta(minutes=30)
"""Longest wait of one rank for another: a long generation may lie between two calls of a rank, none inside one."""


def mesh_of(setup: RankSetup) -> DeviceMesh:
    """A mesh of axis `dp` over the role's ranks; with tensor parallelism of `dp` and `tp`, whose ranks are neighbours.
    Joins the process group if this process has none; a second role in the process shares it, which needs the same
    ranks."""
    device = torch.device(setup.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        dist.init_process_group(
            "gloo" if device.type == "cpu" else "nccl",
            store=_store(setup),
            rank=setup.rank,
            world_size=setup.world_size,
            timeout=TIMEOUT,
        )
    if (dist.get_rank(), dist.get_world_size()) != (setup.rank, setup.world_size):
        raise InternalError(f"`{setup.role.name}` shares a process with a role of other ranks")
    tp = setup.layout.tp
    if tp == 1:
        return init_device_mesh(device.type, (setup.world_size,), mesh_dim_names=("dp",))
    return init_device_mesh(device.type, (setup.world_size // tp, tp), mesh_dim_names=("dp", "tp"))


def shard_mesh(setup: RankSetup, mesh: DeviceMesh) -> DeviceMesh:
    """What parameters are cut over: all ranks, or with `engine.shard_devices` neighbours that share one copy of the
    states, of which there are then several (axes `replicate`, `shard`)."""
    each = setup.role.engine.shard_devices or mesh.size()
    if each == mesh.size():
        return mesh
    if mesh.size() % each:
        raise InternalError(f"{each} ranks of `{setup.role.name}` cannot share a copy: it has {mesh.size()}")
    return init_device_mesh(mesh.device_type, (mesh.size() // each, each), mesh_dim_names=("replicate", "shard"))


def total(values: Tensor, mesh: DeviceMesh | None) -> Tensor:
    """The sum of `values` over all ranks, on every rank."""
    if mesh is not None and mesh.size() > 1:
        dist.all_reduce(values, group=mesh.get_group())
    return values


def most(value: int, mesh: DeviceMesh | None) -> int:
    """The largest `value` of any rank, on every rank."""
    if mesh is None or mesh.size() == 1:
        return value
    tensor = torch.tensor(value, device=mesh.device_type)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=mesh.get_group())
    return int(tensor)


def largest(value: float, mesh: DeviceMesh | None) -> float:
    """As `most`, of floats."""
    if mesh is None or mesh.size() == 1:
        return value
    tensor = torch.tensor(value, dtype=torch.float64, device=mesh.device_type)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=mesh.get_group())
    return float(tensor)


def _store(setup: RankSetup) -> dist.Store:
    if setup.world_size == 1:
        return dist.HashStore()
    if setup.store_port is None:
        raise InternalError(f"`{setup.role.name}` has {setup.world_size} ranks and no store port")
    is_master = setup.rank == 0
    return dist.TCPStore(setup.store_host, setup.store_port, setup.world_size, is_master=is_master, timeout=TIMEOUT)
