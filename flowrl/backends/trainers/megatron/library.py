"""All that is used of Megatron Core, by name: one table, imported when the first rank is made.

Megatron Core is in no default install (docs/megatron.md); the rest of FlowRL imports this package without it.
"""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

from flowrl.diag.diagnostic import FlowError, diagnose
from flowrl.diag.span import Span

VERSION = "0.19.2"
"""The release that this backend is written for: it leans on parts that change between releases."""

USED: Mapping[str, str] = {
    "GPTModel": "megatron.core.models.gpt.gpt_model",
    "TransformerConfig": "megatron.core.transformer.transformer_config",
    "TransformerLayer": "megatron.core.transformer.transformer_layer",
    "TransformerBlockSubmodules": "megatron.core.transformer.transformer_block",
    "Float16Module": "megatron.core.transformer.module",
    "get_gpt_layer_local_spec": "megatron.core.models.gpt.gpt_layer_specs",
    "DistributedDataParallel": "megatron.core.distributed",
    "DistributedDataParallelConfig": "megatron.core.distributed",
    "finalize_model_grads": "megatron.core.distributed",
    "DistributedOptimizer": "megatron.core.optimizer.distrib_optimizer",
    "OptimizerConfig": "megatron.core.optimizer",
    "get_forward_backward_func": "megatron.core.pipeline_parallel",
    "gather_from_sequence_parallel_region": "megatron.core.tensor_parallel",
    "model_parallel_cuda_manual_seed": "megatron.core.tensor_parallel.random",
}


@lru_cache(maxsize=1)
def core() -> Any:
    """The names of USED, and `parallel_state`. Raises ModuleNotFoundError where Megatron Core is not installed."""
    with warnings.catch_warnings():
        # Megatron Core tells of every optional library that is not there.
        warnings.simplefilter("ignore")
        found = {name: getattr(importlib.import_module(module), name) for name, module in USED.items()}
        logging.getLogger("megatron").setLevel(logging.ERROR)
        found["parallel_state"] = importlib.import_module("megatron.core.parallel_state")
    return SimpleNamespace(**found)


def require(span: Span | None) -> None:
    """Raises FlowError FR0880 unless Megatron Core is here in the release that is meant."""
    try:
        there = version("megatron-core")
        core()
    except ModuleNotFoundError as missing:
        raise FlowError(diagnose("FR0880", span, wanted=VERSION, found=f"lacks `{missing.name}`")) from missing
    if there != VERSION:
        raise FlowError(diagnose("FR0880", span, wanted=VERSION, found=f"has {there}"))
