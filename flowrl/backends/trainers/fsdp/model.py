"""The model of one rank: loaded from its folder, made ready, and sharded over the ranks.

Parameters are kept in float32 (they are what the optimizer moves) and computed with in the model's dtype; those that an
adapter (LoRA) leaves as they are, are kept in the model's dtype. A scorer of such a model is its base. With one rank
and float32 the module stays plain: FSDP2 would gather and scatter nothing and cost its hooks. In every other case it is
sharded, also on a single rank, since FSDP2's mixed precision is what makes a bfloat16 model of float32 parameters.
Everything beyond this file treats both alike.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification
from transformers.utils import logging as hf_logging

from flowrl.backends.contract import RankSetup
from flowrl.backends.lora import adapt
from flowrl.backends.models import torch_dtype
from flowrl.backends.trainers.fsdp.group import mesh_of
from flowrl.diag.diagnostic import FlowError, InternalError, diagnose
from flowrl.graph.graph import Kind


def build(setup: RankSetup) -> tuple[nn.Module, DeviceMesh | None]:
    """The module with float32 parameters, and the mesh it is sharded over (None: plain).

    Raises FlowError FR0801 for layouts and engine keys that are not built yet.
    """
    if setup.model is None or setup.model_folder is None:
        raise InternalError(f"role `{setup.role.name}` has no model")
    _refuse(setup)
    dtype = torch_dtype(setup.model.dtype)
    lora = setup.model.lora if setup.role.kind is Kind.TRAINER else None
    module = _load(setup, setup.model.head, torch.float32 if lora is None else dtype)
    if lora is not None:
        adapt(module, lora, setup.seed)
    module.to(setup.device)
    _ready(module, setup.role.engine.recompute == "full")
    if setup.world_size == 1 and dtype is torch.float32:
        return module, None
    mesh = mesh_of(setup)
    _shard(module, mesh, dtype)
    return module, mesh


def _refuse(setup: RankSetup) -> None:
    engine, layout = setup.role.engine, setup.layout
    odd = [f"`{name}: {getattr(layout, name)}`" for name in ("tp", "pp", "cp", "ep") if getattr(layout, name) > 1]
    if engine.recompute not in (None, "none", "full"):
        odd.append(f"`recompute: {engine.recompute}`")
    if engine.packing:
        odd.append("`packing: true`")
    if odd:
        what = f"{', '.join(odd)} of role `{setup.role.name}` on backend `fsdp`"
        known = "data parallel ranks (dp), `recompute: none` and `full`"
        raise FlowError(diagnose("FR0801", setup.role.span, what=what, known=known))


def _load(setup: RankSetup, head: str, dtype: torch.dtype) -> nn.Module:
    """A causal LM, or one with a head of one number a token. A head that the folder lacks starts at zero: values and
    scores then begin at 0 whatever the seed, and the first gradients reach the head alone."""
    # Every rank reads the whole folder; a broadcast from one would save host memory on large models.
    hf_logging.disable_progress_bar()
    folder, extra = str(setup.model_folder), dict(setup.role.engine.extra)
    arguments: dict[str, Any] = {"dtype": dtype, "attn_implementation": "sdpa"} | extra
    if head == "lm":
        return AutoModelForCausalLM.from_pretrained(folder, **arguments)
    if head != "scalar":
        raise FlowError(diagnose("FR0801", setup.role.span, what=f"`head: {head}`", known="`lm`, `scalar`"))
    before = hf_logging.get_verbosity()
    hf_logging.set_verbosity_error()  # the head is expected to be missing
    try:
        module, report = AutoModelForTokenClassification.from_pretrained(
            folder, num_labels=1, output_loading_info=True, **arguments
        )
    finally:
        hf_logging.set_verbosity(before)
    missing = {name for name in report["missing_keys"] if name.startswith("score.")}
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name in missing:
                parameter.zero_()
    return module


def _ready(module: Any, recompute: bool) -> None:
    """No dropout: log-probs of one version must be one number, whoever computes them. Training mode only where
    recomputation asks for it."""
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    attention: list[Any] = [p for p in module.modules() if isinstance(getattr(p, "attention_dropout", None), float)]
    for part in attention:
        part.attention_dropout = 0.0
    module.train(recompute)
    if recompute:
        module.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})


def _shard(module: Any, mesh: DeviceMesh, dtype: torch.dtype) -> None:
    policy = MixedPrecisionPolicy(
        param_dtype=None if dtype is torch.float32 else dtype,
        reduce_dtype=torch.float32,
        cast_forward_inputs=False,
    )
    for layer in _layers(module):
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(module, mesh=mesh, mp_policy=policy)


def _layers(module: Any) -> list[nn.Module]:
    """The decoder layers: the list with as many modules as the config says."""
    count = module.config.get_text_config().num_hidden_layers
    lists = [part for part in module.modules() if isinstance(part, nn.ModuleList) and len(part) == count]
    if not lists:
        raise InternalError(f"{type(module).__name__} has no list of {count} layers")
    return list(lists[0])
