"""What each backend can do, as far as a plan must know: kinds of role, axes of a layout, dtypes, offload, memory terms.

Data and pure checks; imports no backend. A test of each backend compares it with its traits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flowrl.machine.shape import ModelShape

AXES = ("dp", "tp", "pp", "cp", "ep")
ENGINES = ("vllm", "sglang", "tensorrt_llm")
"""Inference engines: they take a share of a device when they start, and batch by themselves."""
RING_ATTENTION = ("megatron",)
"""Backends whose cp passes keys and values around a ring (transformer_engine's attention with cp_comm_type p2p), which
any size can; others share attention out by heads."""
ENGINE_TERMS = ("weights", "KV cache", "engine workspace", "CUDA graphs", "engine process", "asleep")


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    backend: str
    kinds: tuple[str, ...]
    """Kinds of role that it runs: trainer, generator, scorer, reward."""
    axes: tuple[str, ...]
    """Axes of a layout that may be larger than 1."""
    searched: tuple[str, ...] = ()
    """Axes that placement tries of itself; the others are as the flow asks."""
    by_need: tuple[str, ...] = ()
    """Axes that it tries of itself where no layout without them fits, or gives every rank a row."""
    recomputes: tuple[str, ...] = ("none",)
    """What its trainers can recompute of their activations, from nothing to all, as far as placement tries it."""
    dtypes: tuple[str, ...]
    offload: bool
    """Whether a role can leave its GPUs while another works there. On a CPU nothing leaves: memory is one."""
    memory_terms: tuple[str, ...]
    """Ledger lines that its roles may have, in the order they are printed."""
    source: str
    """Where the facts come from."""
    heads: tuple[str, ...] = ("lm", "scalar")
    """Heads of models that it runs."""
    cpu_head_sizes: tuple[int, ...] | None = None
    """Sizes of an attention head that it runs on a CPU; None: any."""
    bound_to_positions: bool = False
    """Whether it refuses samples that may be longer than the model's positions."""


TRAITS: Mapping[str, Traits] = {
    traits.backend: traits
    for traits in (
        Traits(
            backend="fsdp",
            kinds=("trainer", "scorer", "reward"),
            heads=("lm", "scalar", "denoiser"),
            axes=("dp", "tp", "cp", "ep"),
            by_need=("tp", "cp", "ep"),
            recomputes=("none", "full"),
            dtypes=("float32", "bfloat16"),
            offload=True,
            memory_terms=(
                "master weights",
                "optimizer states",
                "weights",
                "gradients",
                "root group",
                "gathered layers",
                "8-bit weights",
                "activations",
                "layer work",
                "logits",
                "reduce-scatter input",
            ),
            source="torch.distributed.fsdp.fully_shard (FSDP2): parameters, gradients and states are sharded over dp; "
            "tp by DTensor, cp by Ulysses, ep by torchtitan's and prime-rl's ExpertParallel",
        ),
        Traits(
            backend="deepspeed",
            kinds=("trainer", "generator", "scorer", "reward"),
            axes=("dp", "cp"),
            by_need=("cp",),
            recomputes=("none", "full"),
            dtypes=("float32", "bfloat16", "float16"),
            offload=True,
            memory_terms=(
                "weights",
                "master weights",
                "optimizer states",
                "gradients",
                "gradient buckets",
                "gathered weights",
                "activations",
                "layer work",
                "logits",
                "KV cache",
            ),
            source="DeepSpeed ZeRO stages 1 to 3 (arXiv:1910.02054), sequence parallel by Ulysses",
        ),
        Traits(
            backend="megatron",
            kinds=("trainer", "scorer", "reward"),
            axes=("dp", "tp", "pp", "cp", "ep"),
            searched=("tp", "pp", "ep"),
            by_need=("cp",),
            recomputes=("none", "selective", "full"),
            dtypes=("float32", "bfloat16"),
            offload=True,
            memory_terms=(
                "weights",
                "gradients",
                "master weights",
                "optimizer states",
                "activations",
                "layer work",
                "8-bit weights",
                "logits",
            ),
            source="Megatron Core, distributed optimizer: states are sharded over dp, weights over tp and pp",
        ),
        Traits(
            backend="hf",
            kinds=("generator", "scorer", "reward"),
            axes=("dp",),
            dtypes=("float32", "bfloat16", "float16"),
            offload=True,
            memory_terms=("weights", "KV cache", "layer work", "logits"),
            source="transformers: each rank holds the whole model",
        ),
        Traits(
            backend="diffusers",
            kinds=("generator",),
            heads=("denoiser",),
            axes=("dp",),
            dtypes=("float32", "bfloat16", "float16"),
            offload=True,
            memory_terms=("weights", "text encoders and image decoder", "layer work"),
            source="diffusers: each rank holds the whole pipeline",
        ),
        Traits(
            backend="vllm",
            kinds=("generator", "scorer", "reward"),
            axes=("dp", "tp", "pp", "ep"),
            searched=("tp",),
            by_need=("pp", "ep"),
            dtypes=("float32", "bfloat16", "float16"),
            offload=True,
            memory_terms=ENGINE_TERMS,
            source="vLLM: tensor and pipeline parallel within an engine, one engine per dp rank, experts over all of "
            "them (--enable-expert-parallel); sleep and wake free the device. "
            "CPUAttentionBackend.get_supported_head_sizes of 0.32 (another fails at the first token, not at start)",
            cpu_head_sizes=(32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512),
            bound_to_positions=True,
        ),
        Traits(
            backend="sglang",
            kinds=("generator",),
            axes=("dp", "tp", "pp", "ep"),
            searched=("tp",),
            by_need=("pp",),
            dtypes=("float32", "bfloat16", "float16"),
            offload=True,
            memory_terms=ENGINE_TERMS,
            source="SGLang: --tp-size, --pp-size, --ep-size; release_memory_occupation and resume_memory_occupation "
            "free the device (python/sglang/srt/server_args.py)",
        ),
        Traits(
            backend="tensorrt_llm",
            kinds=("generator",),
            axes=("dp", "tp", "pp", "ep"),
            searched=("tp",),
            by_need=("pp",),
            dtypes=("float32", "bfloat16", "float16"),
            offload=True,
            memory_terms=ENGINE_TERMS,
            source="TensorRT-LLM, LLM API: tensor_parallel_size, pipeline_parallel_size, moe_expert_parallel_size "
            "(tensorrt_llm/llmapi/llm_args.py); sleep and wake by its virtual memory tags",
        ),
    )
}


def illegal_axis(traits: Traits, sizes: Mapping[str, int]) -> str | None:
    """The first axis larger than 1 that the backend does not have; None if all are legal."""
    return next((axis for axis in AXES if sizes.get(axis, 1) > 1 and axis not in traits.axes), None)


def layout_fault(traits: Traits, shape: ModelShape, tp: int, pp: int) -> str | None:
    """Why a model cannot be cut so, with the arithmetic; None if it can.

    tp cuts attention by heads and the feed-forward by columns, so it divides both. tp may exceed the key-value heads if
    it is a multiple of them: engines replicate them, Megatron Core gathers the queries, keys and values of a group
    (transformer/attention.py: num_query_groups is "a multiple or divisor" of it). pp cuts layers, if
    need be unevenly (Megatron Core: num_layers_in_first_pipeline_stage, num_layers_in_last_pipeline_stage,
    pipeline_model_parallel_layout), and each stage has one at least.
    """
    if shape.heads % tp:
        return f"tp {tp} does not divide the {shape.heads} attention heads: {shape.heads % tp} left over"
    if shape.ffn % tp:
        return f"tp {tp} does not divide the feed-forward width {shape.ffn:,}: {shape.ffn % tp} left over"
    shared = traits.backend in (*ENGINES, "megatron") and tp % shape.kv_heads == 0
    if shape.kv_heads % tp and not shared:
        return f"tp {tp} does not divide the {shape.kv_heads} key-value heads"
    if pp > shape.layers:
        return f"pp {pp} is more than the {shape.layers} layers: {pp - shape.layers} stages would have none"
    return None


def legal_tp(traits: Traits, shape: ModelShape, devices: int, devices_per_node: int) -> tuple[int, ...]:
    """Sizes of tp from 1 up that divide the devices, stay within a node and can cut the model."""
    if "tp" not in traits.axes:
        return (1,)
    sizes = (tp for tp in range(1, min(devices, devices_per_node) + 1) if devices % tp == 0)
    return tuple(tp for tp in sizes if layout_fault(traits, shape, tp, 1) is None)


def context_fault(shape: ModelShape, cp: int, tp: int = 1) -> str | None:
    """Why the attention of a model cannot be shared out over `cp` ranks by heads (Ulysses), with the arithmetic; None
    if it can. Each rank takes whole attention heads; key-value heads are shared out, or repeated if cp is a multiple of
    them. With tp, of the heads that a tensor-parallel rank holds."""
    heads, kv_heads = shape.heads // tp, max(1, shape.kv_heads // tp)
    if heads % cp:
        return f"cp {cp} does not divide the {heads} attention heads: {heads % cp} left over"
    if kv_heads % cp and cp % kv_heads:
        return f"cp {cp} neither divides the {kv_heads} key-value heads nor is a multiple of them"
    return None


def legal_cp(shape: ModelShape, tp: int = 1) -> tuple[int, ...]:
    """Sizes of cp, from 1 up, over which a model's attention can be shared out by heads."""
    return tuple(cp for cp in range(1, shape.heads // tp + 1) if context_fault(shape, cp, tp) is None)
