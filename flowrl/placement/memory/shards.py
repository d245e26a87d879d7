"""How a trainer or scorer is cut over its devices, in the names that formulas of training memory are written in.

Takes a Placed role; gives inputs and pieces of formulas. Knows no moments and no activations.
"""

from __future__ import annotations

from collections.abc import Mapping

from flowrl.diag.diagnostic import InternalError
from flowrl.machine.shape import DTYPE_BYTES
from flowrl.placement.cost.ledger import Given
from flowrl.placement.cost.placed import Placed, model_inputs
from flowrl.plan.plan import LedgerLine

Lines = list[LedgerLine]

SHARDED = ("fsdp", "deepspeed")
"""Backends that cut states over dp and cp. Others hold the model whole, or as megatron cuts it."""


def shard_ranks(placed: Placed) -> Given:
    """Ranks that share one copy of the states: dp and cp together (both FSDP's mesh and DeepSpeed's group), or
    `shard_devices` of them."""
    layout, asked = placed.layout, placed.role.engine.shard_devices
    everyone = layout.dp * layout.cp
    if asked is not None and asked < everyone:
        return Given(asked, f"shard_devices, of {everyone} ranks")
    return Given(everyone, f"dp {layout.dp} * cp {layout.cp}")


def cut(placed: Placed) -> str:
    """By what states and shards of weights are divided."""
    whole = placed.layout.cp == 1 and shard_ranks(placed).value == placed.layout.dp
    ranks = "dp" if whole else "S"
    return f"(tp*{ranks})" if placed.layout.tp > 1 else ranks


def by_tp(placed: Placed) -> str:
    return "/tp" if placed.layout.tp > 1 else ""


def layer(placed: Placed) -> str:
    """Parameters of the largest layer that are gathered at once: with expert parallelism the experts of this rank."""
    split = placed.layout.ep > 1 and placed.model.experts
    return f"(Lp - Xl + Xl/ep){by_tp(placed)}" if split else f"Lp{by_tp(placed)}"


def layers(placed: Placed) -> str:
    """Those of all layers."""
    split = placed.layout.ep > 1 and placed.model.experts
    return f"(P - R - X + X/ep){by_tp(placed)}" if split else f"(P - R){by_tp(placed)}"


def zero_stage(placed: Placed) -> int:
    return placed.role.engine.zero_stage or 3


def in_eight_bits(placed: Placed) -> bool:
    """Whether products of layers are in fp8: a weight is then there twice more in a byte, by rows and by columns
    (Transformer Engine, pytorch/module/base.py: get_weight_workspace; Hopper multiplies 8-bit numbers in one order)."""
    return placed.role.engine.compute_dtype == "fp8" and placed.backend in ("fsdp", "megatron")


def is_trained(placed: Placed) -> bool:
    return placed.role.trainable


def trains_adapter(placed: Placed) -> bool:
    return placed.role.trainable and bool(placed.adapter)


def kept_bytes(placed: Placed) -> Given:
    """Bytes of a weight as FSDP keeps it between steps: float32 where it is trained, as the model's dtype where not."""
    asked = placed.role.engine.master_dtype
    if asked is not None and placed.role.trainable:
        return Given(DTYPE_BYTES[asked], f"engine.master_dtype {asked}")
    if placed.role.trainable and not placed.adapter:
        return Given(4, "float32, the default of weights that are trained")
    return Given(placed.dtype_bytes, placed.dtype_origin)


def master_bytes(placed: Placed) -> Given:
    """Bytes of a trained number that the optimizer moves."""
    asked = placed.role.engine.master_dtype or "float32"
    return Given(DTYPE_BYTES[asked], f"trained in {asked}")


def moment_bytes(placed: Placed) -> Given:
    """Optimizer states of one parameter. AdamW has two moments, of the master weights' dtype in torch, of float32 in
    Megatron and DeepSpeed; 8-bit ones a byte each and a float32 scale for a block (Dettmers et al. 2022,
    arXiv:2110.02861)."""
    name = placed.role.optimizer.name if placed.role.optimizer is not None else "adamw"
    each = master_bytes(placed).value if placed.backend == "fsdp" else 4
    match name:
        case "sgd":
            return Given(0, "sgd without momentum")
        case "adamw_8bit":
            block = placed.profile.training.moment_block
            return Given(2 * (1 + 4 / block), f"two moments of a byte, a float32 scale for {block} numbers")
        case "adamw":
            dtype = "float32" if each == 4 else "bfloat16"
            return Given(2 * each, f"adamw: two {dtype} moments")
        case _:
            raise InternalError(f"an optimizer `{name}` without bytes")


def training_inputs(placed: Placed) -> Mapping[str, Given]:
    """Names beside those of `model_inputs`: X routed experts, Xl those of one layer · S ranks that share the states ·
    m bytes of a weight as it is kept · a parameter's t bytes of trained weight, o of moments, g of a reduced gradient ·
    u share of the optimizer that is not on the device · cp, ep of the layout."""
    found = placed.names.get("training")
    if found is None:
        found = placed.names["training"] = _training_inputs(placed)
    return found


def _training_inputs(placed: Placed) -> Mapping[str, Given]:
    where, always = placed.layout_origin, placed.kept.get("training")
    if always is None:
        always = placed.kept["training"] = _role_inputs(placed)
    return {
        **model_inputs(placed),
        **always,
        "S": shard_ranks(placed),
        "cp": Given(placed.layout.cp, where),
        "ep": Given(placed.layout.ep, where),
    }


def _role_inputs(placed: Placed) -> Mapping[str, Given]:
    """Those that no layout changes."""
    engine, shape = placed.role.engine, placed.model
    experts = shape.experts * shape.expert_parameters if shape.experts else 0
    return {
        "X": Given(shape.expert_parameters_total, f"routed experts: {shape.origin}"),
        "Xl": Given(experts, f"routed experts of a layer: {shape.origin}"),
        "B": Given(shape.largest_tensor, shape.origin),
        "m": kept_bytes(placed),
        "t": master_bytes(placed),
        "o": moment_bytes(placed),
        "g": Given(DTYPE_BYTES[engine.gradient_dtype], f"gradients in {engine.gradient_dtype}"),
        "u": Given(engine.optimizer_offload, "engine.optimizer_offload"),
    }


def rest(placed: Placed) -> str:
    """Factor of optimizer states that are on the device."""
    return "(1 - u)*" if placed.role.engine.optimizer_offload > 0 else ""


def some(lines: Lines) -> Lines:
    """Without those that are nothing."""
    return [each for each in lines if each.value > 0]
