"""The model of one rank: loaded from its folder, made ready, and sharded over the ranks.

Parameters are kept in float32 (they are what the optimizer moves) and computed with in the model's dtype; those that an
adapter (LoRA) leaves as they are, are kept in the model's dtype. A scorer of such a model is its base. With one rank
and float32, or with adapters, which cast themselves, the module stays plain: FSDP2 would gather and scatter nothing and
cost its hooks. In every other case it is sharded, also on a single rank, since FSDP2's mixed precision is what makes a
bfloat16 model of float32 parameters. Everything beyond this file treats both alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import create_selective_checkpoint_contexts
from transformers import AutoModelForTokenClassification
from transformers.utils import logging as hf_logging

from flowrl.backends.contract import RankSetup
from flowrl.backends.denoisers import check, load_transformer
from flowrl.backends.lora import adapt
from flowrl.backends.models import load_lm, torch_dtype
from flowrl.backends.trainers.fsdp.group import mesh_of, shard_mesh
from flowrl.backends.trainers.fsdp.head import make_token_head
from flowrl.backends.trainers.fsdp.packing import ATTENTION
from flowrl.backends.trainers.fsdp.tensor_parallel import cut_layers, fault_of
from flowrl.diag.diagnostic import FlowError, InternalError, diagnose
from flowrl.graph.graph import Kind

PACKED = {"": ATTENTION, "text_config": ATTENTION, "vision_config": "sdpa"}
"""Attention of rows that are packed. An encoder of images has its own, in which each image is a sequence already."""
WAYS_OF_LOGITS = ("whole", "in_place", "chunked")


def build(setup: RankSetup) -> tuple[nn.Module, DeviceMesh | None]:
    """The module, with parameters as they are kept, and the mesh it is sharded over (None: plain).

    Raises FlowError FR0801 for layouts and engine keys that are not built yet.
    """
    if setup.model is None or setup.model_folder is None:
        raise InternalError(f"role `{setup.role.name}` has no model")
    _refuse(setup)
    engine, dtype = setup.role.engine, torch_dtype(setup.model.dtype)
    trains = setup.role.kind is Kind.TRAINER
    lora = setup.model.lora if trains else None
    master = torch_dtype(engine.master_dtype or "float32") if trains else dtype
    module = _load(setup, setup.model.head, master if lora is None else dtype)
    if lora is not None:
        adapt(module, lora, setup.seed, master)
    if not engine.parameter_offload:
        module.to(setup.device)
    _require_cut(module, setup)
    _ready(module, engine.recompute or "none")
    if engine.cross_entropy == "chunked" and setup.model.head == "lm":
        _chunk(module, setup)
    if setup.world_size == 1 and (master is dtype or lora is not None) and not engine.parameter_offload:
        return module, None
    mesh = mesh_of(setup)
    if setup.layout.tp > 1:
        cut_layers(module, _layers(module), mesh["tp"])
        mesh = mesh["dp"]
    _shard(module, setup, mesh, dtype)
    return module, mesh


def _refuse(setup: RankSetup) -> None:
    engine, layout = setup.role.engine, setup.layout
    odd = [f"`{name}: {getattr(layout, name)}`" for name in ("pp", "cp", "ep") if getattr(layout, name) > 1]
    if engine.cross_entropy not in WAYS_OF_LOGITS:
        odd.append(f"`cross_entropy: {engine.cross_entropy}`")
    if layout.tp > 1:
        odd += [f"`{key}` with `tp`" for key in _not_with_tp(setup)]
    if odd:
        what = f"{', '.join(odd)} of role `{setup.role.name}` on backend `fsdp`"
        known = f"ranks of dp and tp, `cross_entropy` {', '.join(WAYS_OF_LOGITS)}"
        raise FlowError(diagnose("FR0801", setup.role.span, what=what, known=known))


def _not_with_tp(setup: RankSetup) -> list[str]:
    engine = setup.role.engine
    trains_adapters = setup.role.kind is Kind.TRAINER and setup.model is not None and setup.model.lora is not None
    asked = {
        "lora": trains_adapters,
        "cross_entropy: chunked": engine.cross_entropy == "chunked",
        "shard_devices": engine.shard_devices is not None,
        "parameter_offload": engine.parameter_offload,
    }
    return [key for key, is_asked in asked.items() if is_asked]


def _require_cut(module: nn.Module, setup: RankSetup) -> None:
    reason = fault_of(module, _layers(module), setup.layout.tp) if setup.layout.tp > 1 else None
    if reason is not None:
        what = f"`tp: {setup.layout.tp}` of role `{setup.role.name}` on backend `fsdp` for a model with {reason}"
        raise FlowError(diagnose("FR0801", setup.role.span, what=what, known="`tp: 1`"))


def _chunk(module: nn.Module, setup: RankSetup) -> None:
    reason = make_token_head(module)
    if reason is not None:
        what = f"`cross_entropy: chunked` of role `{setup.role.name}` with {reason}"
        raise FlowError(diagnose("FR0801", setup.role.span, what=what, known="`whole`"))


def _load(setup: RankSetup, head: str, dtype: torch.dtype) -> nn.Module:
    """A causal LM, or one with a head of one number a token. A head that the folder lacks starts at zero: values and
    scores then begin at 0 whatever the seed, and the first gradients reach the head alone."""
    # Every rank reads the whole folder; a broadcast from one would save host memory on large models.
    hf_logging.disable_progress_bar()
    folder, extra = str(setup.model_folder), dict(setup.role.engine.extra)
    arguments: dict[str, Any] = {
        "dtype": dtype,
        "attn_implementation": PACKED if setup.role.engine.packing else "sdpa",
    } | extra
    if head == "lm":
        assert setup.model_folder is not None
        return load_lm(setup.model_folder, **arguments)
    if head == "denoiser":
        assert setup.model is not None
        assert setup.model_folder is not None
        check(setup.model, setup.model_folder)
        return load_transformer(setup.model_folder, dtype)
    if head != "scalar":
        raise FlowError(diagnose("FR0801", setup.role.span, what=f"`head: {head}`", known="`lm`, `scalar`, `denoiser`"))
    before = hf_logging.get_verbosity()
    hf_logging.set_verbosity_error()  # the head is expected to be missing
    try:
        module, report = AutoModelForTokenClassification.from_pretrained(
            folder, num_labels=1, output_loading_info=True, **arguments
        )
    finally:
        hf_logging.set_verbosity(before)
    missing = {name for name in report["missing_keys"] if name.startswith("score.")}
    _begin_head([parameter for name, parameter in module.named_parameters() if name in missing], setup)
    return module


def _begin_head(missing: Sequence[nn.Parameter], setup: RankSetup) -> None:
    """Zero, but for a reward model of a shape in the flow: nothing trains it, and zeros would reward all alike. One
    that has a source must bring its head."""
    model, is_reward = setup.model, setup.role.kind is Kind.REWARD
    if missing and is_reward and model is not None and model.inline is None:
        reason = "it has no head of one number a token (`score.weight`), so it is no reward model"
        raise FlowError(diagnose("FR0803", model.span, model=model.name, source=model.source, reason=reason))
    with torch.no_grad():
        for parameter in missing:
            if is_reward:
                parameter.normal_(0.0, parameter.shape[-1] ** -0.5, generator=torch.Generator().manual_seed(setup.seed))
            else:
                parameter.zero_()


def _ready(module: Any, recompute: str) -> None:
    """No dropout: log-probs of one version must be one number, whoever computes them. Training mode only where
    recomputation asks for it."""
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    attention: list[Any] = [p for p in module.modules() if isinstance(getattr(p, "attention_dropout", None), float)]
    for part in attention:
        part.attention_dropout = 0.0
    module.train(recompute != "none")
    if recompute == "none":
        return
    if hasattr(module, "enable_gradient_checkpointing"):
        module.enable_gradient_checkpointing()
        return
    keeping = {"context_fn": _keeping_products} if recompute == "selective" else {}
    module.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False, **keeping})


def _keeping_products() -> Any:
    """Of a layer that is recomputed selectively: what matrix products and attention gave is kept, norms, activations
    and what lies between are made again."""
    aten = torch.ops.aten
    products = [
        aten.mm.default,
        aten.addmm.default,
        aten.bmm.default,
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        aten._scaled_dot_product_flash_attention.default,
        aten._scaled_dot_product_efficient_attention.default,
        aten._scaled_dot_product_cudnn_attention.default,
    ]
    return create_selective_checkpoint_contexts(products)


def _shard(module: Any, setup: RankSetup, mesh: DeviceMesh, dtype: torch.dtype) -> None:
    engine = setup.role.engine
    policy = MixedPrecisionPolicy(
        param_dtype=None if all(p.dtype is dtype for p in module.parameters()) else dtype,
        reduce_dtype=torch_dtype(engine.gradient_dtype),
        cast_forward_inputs=False,
    )
    shares: dict[str, Any] = {"mesh": shard_mesh(setup, mesh), "mp_policy": policy}
    if engine.parameter_offload:
        shares["offload_policy"] = CPUOffloadPolicy(pin_memory=mesh.device_type != "cpu")
    for layer in _layers(module):
        fully_shard(layer, reshard_after_forward=engine.zero_stage in (None, 3), **shares)
    fully_shard(module, **shares)


def _layers(module: Any) -> list[nn.Module]:
    """The decoder layers: the list with as many modules as the config says; of a denoiser its blocks of both kinds."""
    if hasattr(module, "single_transformer_blocks"):
        return [*module.transformer_blocks, *module.single_transformer_blocks]
    count = module.config.get_text_config().num_hidden_layers
    # An encoder of images may have as many layers.
    lists = [part for part in module.get_decoder().modules() if isinstance(part, nn.ModuleList) and len(part) == count]
    if not lists:
        raise InternalError(f"{type(module).__name__} has no list of {count} layers")
    return list(lists[0])
