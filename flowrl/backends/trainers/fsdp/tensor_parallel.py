"""Tensor parallelism by DTensor: the matrices of the decoder layers, embedding and head cut over the ranks of `tp`.

As in Megatron (Shoeybi et al. 2019): the first products of attention and feed-forward by rows of their weights, so that
each rank has whole heads, the second by columns, with one sum over the ranks behind each. Norms are whole on each rank.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

FIRST = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
SECOND = ("o_proj", "down_proj")


def fault_of(module: Any, layers: list[nn.Module], tp: int) -> str | None:
    """Why a model cannot be cut so; None if it can."""
    for name, part in layers[0].named_modules():
        last = name.rpartition(".")[2]
        if isinstance(part, nn.Linear) and last not in (*FIRST, *SECOND):
            return f"a matrix `{name}`"
        if last in ("q_norm", "k_norm"):
            return f"a norm of each head (`{name}`)"
    config = module.config.get_text_config()
    uneven = [key for key in ("num_attention_heads", "num_key_value_heads") if getattr(config, key) % tp]
    return f"{getattr(config, uneven[0])} {uneven[0]}" if uneven else None


def cut_layers(module: Any, layers: list[nn.Module], mesh: DeviceMesh) -> None:
    """Cut the module's matrices over `mesh`, before FSDP2 cuts what is left of them over dp."""
    for layer in layers:
        styles: dict[str, ParallelStyle] = {}
        for name, part in layer.named_modules():
            if isinstance(part, nn.Linear):
                first = name.rpartition(".")[2] in FIRST
                styles[name] = ColwiseParallel() if first else RowwiseParallel()
        parallelize_module(layer, mesh, styles)
    embedding, head = module.get_input_embeddings(), module.get_output_embeddings()
    tied = head is not None and head.weight is embedding.weight
    parallelize_module(embedding, mesh, RowwiseParallel(input_layouts=Replicate(), output_layouts=Replicate()))
    if head is None:
        return
    parallelize_module(head, mesh, ColwiseParallel(output_layouts=Replicate()))
    if tied:
        head.weight = embedding.weight
