"""Gradient buffers and the distributed optimizer of one stage: each data parallel rank moves its share of every
parameter and keeps that share's float32 copy and moments. Knows no loss and no file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flowrl.backends.trainers.fsdp.optimizer import make_optimizer
from flowrl.backends.trainers.megatron.groups import Groups
from flowrl.backends.trainers.megatron.library import core
from flowrl.backends.trainers.megatron.model import unwrapped
from flowrl.diag.span import Span
from flowrl.graph.params import OptimizerParams


@dataclass(frozen=True, slots=True)
class Own:
    """What this rank's optimizer has of a parameter: its elements [start, stop)."""

    start: int
    stop: int
    master: Any
    """float32 [stop - start]; of a float32 model the elements themselves."""
    state: dict[str, Any]


class Optimizer:
    """Megatron Core's DistributedOptimizer around torch's AdamW or SGD, so that it moves as backend `fsdp` does: weight
    decay acts on every parameter. Raises FlowError FR0801 for another name or schedule."""

    def __init__(
        self, module: Any, params: OptimizerParams, groups: Groups, dtype: torch.dtype, span: Span | None
    ) -> None:
        self._groups = groups
        self._most_norm = params.max_grad_norm or 0.0
        with groups.here():
            self.model = _buffered(module, groups, dtype)
            self._inner = _distributed(self.model, params, dtype, span)

    @property
    def moving(self) -> torch.optim.Optimizer:
        """torch's own, whose states are by share of a parameter."""
        return self._inner.optimizer

    def zero(self) -> None:
        with self._groups.here():
            self.model.zero_grad_buffer()
            self._inner.zero_grad()

    def finish(self) -> float:
        """Sum the gradients of all replicas, scale them down to the norm that is allowed; gives their norm before."""
        with self._groups.here():
            core().finalize_model_grads([self.model])
            self._inner.prepare_grads()
            return float(self._inner.clip_grad_norm(self._most_norm))

    def step(self, rate: float) -> None:
        with self._groups.here():
            for group in self.moving.param_groups:
                group["lr"] = rate
            self._inner.step_with_ready_grads()

    def own(self, parameter: Any) -> Own | None:
        """None if all of the parameter is other ranks' to move."""
        place = self._inner.model_param_group_index_map.get(parameter)
        if place is None:
            return None
        group, number = place
        master = self.moving.param_groups[group]["params"][number]
        share = self._inner._get_model_param_range_map(parameter)["param"]
        return Own(share.start, share.end, master, self.moving.state[master])

    def offload(self) -> None:
        """Parameters and states to host memory; gradient buffers are given up."""
        for buffer in self.model.buffers:
            buffer.offload_to_cpu()
        self._inner.offload_to_cpu()

    def load(self) -> None:
        self._inner.restore_from_cpu()
        for buffer in self.model.buffers:
            buffer.reload_from_cpu()


def moments(own: Own) -> dict[str, Tensor]:
    """The tensors of the state that have the share's shape; `step` is a counter."""
    return {name: value for name, value in own.state.items() if isinstance(value, Tensor) and value.dim()}


def _buffered(module: Any, groups: Groups, dtype: torch.dtype) -> Any:
    """The module over buffers of parameters and float32 gradients. Gradients are summed over replicas, once a
    minibatch: each is of a share of the whole minibatch's loss."""
    config = core().DistributedDataParallelConfig(
        use_distributed_optimizer=True,
        grad_reduce_in_fp32=True,
        overlap_grad_reduce=False,
        overlap_param_gather=False,
    )
    model = core().DistributedDataParallel(unwrapped(module).config, config, module)
    return model.train(module.training)


def _distributed(model: Any, params: OptimizerParams, dtype: torch.dtype, span: Span | None) -> Any:
    state = core().parallel_state
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    moving = make_optimizer(params, parameters, span)
    for group in moving.param_groups:
        group |= {"is_expert_parallel": False, "default_config": True, "wd_mult": 1.0, "lr_mult": 1.0}
    config = core().OptimizerConfig(
        lr=params.lr,
        params_dtype=dtype,
        bf16=dtype is torch.bfloat16,
        use_distributed_optimizer=True,
        clip_grad=params.max_grad_norm or 0.0,
    )
    made = core().DistributedOptimizer(
        moving,
        config,
        None,
        _keep_states,
        model_chunks=[model],
        per_model_buffers={0: model.buffers},
        data_parallel_group=state.get_data_parallel_group(with_context_parallel=True),
        data_parallel_group_gloo=None,
        data_parallel_group_idx=state.get_model_parallel_group().rank(),
        distributed_optimizer_instance_id=0,
    )
    made.grad_stats_parallel_group = state.get_intra_distributed_optimizer_instance_group()
    made.tp_group = made.expert_tp_group = state.get_tensor_model_parallel_group()
    return made


def _keep_states(*_: Any) -> None:
    """States come with the first step, as torch makes them."""
