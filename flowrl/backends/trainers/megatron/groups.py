"""The process groups of a role's ranks: tensor, pipeline and data parallel. Knows no model.

Ranks are numbered as Megatron Core does and as plans count them: neighbours share tp, then dp, then stages.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from flowrl.backends.contract import RankSetup
from flowrl.backends.trainers.fsdp.group import mesh_of
from flowrl.backends.trainers.megatron.cpu import on_cpu
from flowrl.backends.trainers.megatron.library import core
from flowrl.diag.diagnostic import InternalError

_open: list[int] = []
"""Ranks of this process that share the groups."""


@dataclass(frozen=True, slots=True)
class Groups:
    tp: int
    pp: int
    dp: int
    tp_rank: int
    pp_rank: int
    dp_rank: int
    tp_group: Any
    pp_group: Any
    mesh: DeviceMesh
    """Of one axis, `dp`: the ranks with the same part of the model."""
    device: str

    @property
    def is_first(self) -> bool:
        return self.pp_rank == 0

    @property
    def is_last(self) -> bool:
        return self.pp_rank == self.pp - 1

    @property
    def speaks(self) -> bool:
        """Whether this rank gives the rows of its replica: they are made on the last stage, on each tp rank alike."""
        return self.is_last and self.tp_rank == 0

    def from_last(self, value: Any) -> Any:
        """What the last stage has, on every stage of this replica."""
        if self.pp == 1:
            return value
        held = [value]
        source = dist.get_global_rank(self.pp_group, self.pp - 1)
        dist.broadcast_object_list(held, src=source, group=self.pp_group)
        return held[0]

    def here(self) -> AbstractContextManager[None]:
        """Inside it Megatron Core may be called."""
        return _quiet(self.device)


def join(setup: RankSetup) -> Groups:
    """The groups of this rank. Joins the process group if this process has none; a second role in the process shares
    them, which needs the same layout."""
    layout, state = setup.layout, core().parallel_state
    mesh_of(setup)
    with _quiet(setup.device):
        if not state.model_parallel_is_initialized():
            state.initialize_model_parallel(
                tensor_model_parallel_size=layout.tp,
                pipeline_model_parallel_size=layout.pp,
                create_gloo_process_groups=False,
            )
            with torch.random.fork_rng(devices=[]):
                core().model_parallel_cuda_manual_seed(setup.seed + 1)
    there = state.get_tensor_model_parallel_world_size(), state.get_pipeline_model_parallel_world_size()
    if there != (layout.tp, layout.pp):
        raise InternalError(f"`{setup.role.name}` shares a process with a role of another layout")
    _open.append(setup.rank)
    dp_group = state.get_data_parallel_group()
    return Groups(
        tp=layout.tp,
        pp=layout.pp,
        dp=dist.get_world_size(dp_group),
        tp_rank=state.get_tensor_model_parallel_rank(),
        pp_rank=state.get_pipeline_model_parallel_rank(),
        dp_rank=dist.get_rank(dp_group),
        tp_group=state.get_tensor_model_parallel_group(),
        pp_group=state.get_pipeline_model_parallel_group(),
        mesh=DeviceMesh.from_group(dp_group, setup.device.partition(":")[0], mesh_dim_names=("dp",)),
        device=setup.device,
    )


def leave(groups: Groups) -> None:
    """Leave the groups once nothing of this process needs them any more."""
    if _open:
        _open.pop()
    if _open or not dist.is_initialized() or groups.tp * groups.pp * groups.dp == 1:
        return
    core().parallel_state.destroy_model_parallel()
    dist.destroy_process_group()


@contextmanager
def _quiet(device: str) -> Iterator[None]:
    """Megatron Core's place, without its remarks about keys of its own that FlowRL sets."""
    with warnings.catch_warnings(), on_cpu() if device == "cpu" else nullcontext():
        warnings.filterwarnings("ignore", module=r"megatron\.")
        warnings.filterwarnings("ignore", message=r"`torch\.distributed\.\w+` is deprecated")
        # The float32 shares of the optimizer are views of parameters; it asks for their gradients to clear them.
        warnings.filterwarnings("ignore", message=r"The \.grad attribute of a Tensor that is not a leaf")
        yield
