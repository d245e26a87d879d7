"""What a vLLM engine is started with, and every misconfiguration that can be known before it starts.

Takes a RankSetup and the model folder's config.json; gives engine arguments as a plain dict, or diagnostics. Imports
neither vLLM nor torch, so a launcher may read `environment` before either is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flowrl.backends.contract import RankSetup
from flowrl.diag.diagnostic import Diagnostic, FlowError, diagnose
from flowrl.diag.span import Span
from flowrl.machine.engines import KV_FRACTION, RESERVED, lora_rank
from flowrl.machine.traits import TRAITS

CPU_BLOCK_TOKENS = 32
"""vLLM's own default on the CPU is 128, and prompts shorter than a block are not shared."""
CPU_CACHE_LIMIT_BYTES = 1 << 30
"""Most that the KV cache takes on a CPU unless the flow says otherwise: vLLM takes it all at once."""
CPU_HEAD_SIZES = TRAITS["vllm"].cpu_head_sizes or ()
"""The plan has asked already; a folder's config.json may have changed since."""
SEQUENCES = 256
"""Most samples at once on a CPU; on a GPU vLLM chooses."""
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
WORKER_EXTENSION = "flowrl.backends.generators.vllm_worker.WeightExtension"


def environment(device: str, threads: int) -> dict[str, str]:
    """Environment variables of an engine's process; they count only if set before vLLM is imported.

    In process (no engine core process of its own), with the model runner whose sampler vllm_worker.py knows, quiet,
    sending no usage data. On the CPU also without torch's
    compiler: it would build kernels for the first log-probs even of an eager engine.
    """
    shared = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_USE_V2_MODEL_RUNNER": "0",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }
    if not is_cpu(device):
        return shared
    return shared | {"TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": str(threads)}


def is_cpu(device: str) -> bool:
    return device.startswith("cpu")


def engine_arguments(setup: RankSetup) -> dict[str, Any]:
    """Keyword arguments of vLLM's EngineArgs. Raises FlowError with every fault that `faults` finds."""
    assert setup.model is not None
    assert setup.model_folder is not None
    config = read_config(setup.model_folder)
    found = faults(setup, config)
    if found:
        raise FlowError(found)
    arguments: dict[str, Any] = {
        "model": str(setup.model_folder),
        "skip_tokenizer_init": True,
        "generation_config": "vllm",
        "dtype": setup.model.dtype,
        "max_model_len": context_tokens(setup, config),
        "seed": setup.seed,
        "logprobs_mode": "processed_logprobs",
        "enable_prefix_caching": True,
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
        "tensor_parallel_size": setup.layout.tp,
        "worker_extension_cls": WORKER_EXTENSION,
    }
    if setup.layout.tp > 1:
        arguments["distributed_executor_backend"] = "external_launcher"
    arguments |= _cpu_arguments(setup, config) if is_cpu(setup.device) else _gpu_arguments(setup)
    arguments |= _limits(setup)
    if setup.model.lora is not None:
        rank = lora_rank("vllm", int(setup.model.lora["rank"]))
        arguments |= {"enable_lora": True, "max_loras": 1, "max_cpu_loras": 1, "max_lora_rank": rank}
    return arguments | dict(setup.role.engine.extra)


def _cpu_arguments(setup: RankSetup, config: Mapping[str, Any]) -> dict[str, Any]:
    tokens = context_tokens(setup, config)
    sequences = setup.role.engine.max_sequences or SEQUENCES
    one = cache_bytes(setup, config, tokens, 1)
    return {
        "enforce_eager": True,
        "block_size": CPU_BLOCK_TOKENS,
        # A prompt in pieces has vLLM put back the sample's stream of random numbers, which torch cannot on a CPU.
        "enable_chunked_prefill": (setup.role.engine.max_batch_tokens or tokens) < tokens,
        "max_num_seqs": SEQUENCES,
        "kv_cache_memory_bytes": max(one, min(cache_bytes(setup, config, tokens, sequences), CPU_CACHE_LIMIT_BYTES)),
    }


def _gpu_arguments(setup: RankSetup) -> dict[str, Any]:
    engine = setup.role.engine
    return {
        "gpu_memory_utilization": KV_FRACTION if engine.kv_fraction is None else engine.kv_fraction,
        "enable_sleep_mode": True,
        "enforce_eager": not engine.cuda_graphs,
        "kv_cache_dtype": engine.kv_dtype,
    }


def _limits(setup: RankSetup) -> dict[str, Any]:
    """What the flow says of the size of a batch; vLLM has values of its own for the rest."""
    engine = setup.role.engine
    given = {"max_num_seqs": engine.max_sequences, "max_num_batched_tokens": engine.max_batch_tokens}
    return {key: value for key, value in given.items() if value is not None}


def faults(setup: RankSetup, config: Mapping[str, Any]) -> list[Diagnostic]:
    """What vLLM would refuse at start or on the way, said beforehand. Empty if nothing is wrong."""
    model = setup.model
    assert model is not None
    found: list[Diagnostic] = []
    span, name = setup.role.span, setup.role.name
    if model.head != "lm":
        found.append(diagnose("FR0843", model.span or span, model=model.name, head=model.head))
    positions = config.get("max_position_embeddings")
    tokens = setup.max_tokens
    if positions is not None and tokens is not None and tokens > positions:
        over = tokens - positions
        found.append(diagnose("FR0840", span, role=name, tokens=tokens, positions=positions, over=over))
    found += _layout_faults(setup, config)
    size = _head_size(config)
    if is_cpu(setup.device) and size not in CPU_HEAD_SIZES:
        sizes = ", ".join(str(one) for one in CPU_HEAD_SIZES)
        facts = {"hidden": config.get("hidden_size"), "heads": _heads(config)[0], "size": size, "sizes": sizes}
        found.append(diagnose("FR0853", setup.role.spans.get("backend", span), role=name, **facts))
    reserved = sorted(RESERVED["vllm"] & set(setup.role.engine.extra))
    found += [diagnose("FR0844", engine_place(setup, key), role=name, key=key) for key in reserved]
    return found + ([] if found else _cache_faults(setup, config))


def engine_place(setup: RankSetup, key: str) -> Span | None:
    """Where the flow has a key of engine.extra; else the role."""
    return setup.role.spans.get(f"engine.{key}", setup.role.span)


def _layout_faults(setup: RankSetup, config: Mapping[str, Any]) -> list[Diagnostic]:
    layout, span, name = setup.layout, setup.role.span, setup.role.name
    found = [
        diagnose("FR0842", span, role=name, axis=axis, size=size)
        for axis, size in (("pp", layout.pp), ("cp", layout.cp), ("ep", layout.ep))
        if size > 1
    ]
    heads, kv_heads = _heads(config)
    if heads % layout.tp:
        found.append(diagnose("FR0841", span, role=name, tp=layout.tp, heads=heads, what="attention"))
    elif kv_heads % layout.tp and layout.tp % kv_heads:
        found.append(diagnose("FR0841", span, role=name, tp=layout.tp, heads=kv_heads, what="key-value"))
    return found


def _cache_faults(setup: RankSetup, config: Mapping[str, Any]) -> list[Diagnostic]:
    given = setup.role.engine.extra.get("kv_cache_memory_bytes")
    if given is None:
        return []
    tokens = context_tokens(setup, config)
    need = cache_bytes(setup, config, tokens, 1)
    span = engine_place(setup, "kv_cache_memory_bytes")
    if given < need:
        return [diagnose("FR0845", span, role=setup.role.name, given=given, need=need, tokens=tokens)]
    free = _free_bytes() if is_cpu(setup.device) else None
    if free is not None and given > free:
        return [diagnose("FR0852", span, role=setup.role.name, given=given, free=free)]
    return []


def _free_bytes() -> int | None:
    """Memory that new processes may take, by the kernel's own estimate; None where there is no /proc."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of a Hugging Face folder; of a multimodal model the part that speaks of text."""
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return config | config.get("text_config", {})


def context_tokens(setup: RankSetup, config: Mapping[str, Any]) -> int:
    """Longest prompt + response the engine reserves for: what the flow allows, else all positions of the model."""
    said = setup.role.engine.max_model_tokens or setup.max_tokens
    if said is not None:
        return said
    return int(config.get("max_position_embeddings", 2048))


def cache_bytes(setup: RankSetup, config: Mapping[str, Any], tokens: int, sequences: int) -> int:
    """Bytes of KV cache for `sequences` of `tokens` each, on one device, and the block that vLLM keeps for itself.

    A token takes keys and values of every layer: 2 · layers · key-value heads · head size · bytes of the dtype.
    """
    assert setup.model is not None
    heads_here = max(1, _heads(config)[1] // setup.layout.tp)
    token = 2 * config["num_hidden_layers"] * heads_here * _head_size(config) * DTYPE_BYTES[setup.model.dtype]
    block = int(setup.role.engine.extra.get("block_size", CPU_BLOCK_TOKENS if is_cpu(setup.device) else 16))
    return token * block * (sequences * -(-tokens // block) + 1)


def _heads(config: Mapping[str, Any]) -> tuple[int, int]:
    heads = int(config["num_attention_heads"])
    return heads, int(config.get("num_key_value_heads") or heads)


def _head_size(config: Mapping[str, Any]) -> int:
    return int(config.get("head_dim") or config["hidden_size"] // _heads(config)[0])
