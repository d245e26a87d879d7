"""Legal layouts, against what the backends' own rules say."""

from __future__ import annotations

from flowrl.backends.registry import BACKENDS, PLANNED
from flowrl.machine.models import CARDS
from flowrl.machine.traits import TRAITS, illegal_axis, layout_fault, legal_tp

VLLM, FSDP, MEGATRON = TRAITS["vllm"], TRAITS["fsdp"], TRAITS["megatron"]


def test_tp_divides_the_heads() -> None:
    """vLLM refuses others: "Total number of attention heads (N) must be divisible by tensor parallel size"."""
    assert legal_tp(VLLM, CARDS["Qwen/Qwen2.5-7B"], 8, 8) == (1, 2, 4)
    assert legal_tp(VLLM, CARDS["Qwen/Qwen2.5-0.5B"], 8, 8) == (1, 2)
    assert legal_tp(VLLM, CARDS["HuggingFaceTB/SmolLM2-135M"], 6, 6) == (1, 3)
    assert legal_tp(VLLM, CARDS["Qwen/Qwen2.5-32B"], 16, 8) == (1, 2, 4, 8)


def test_tp_stays_in_a_node_and_divides_the_pool() -> None:
    assert legal_tp(VLLM, CARDS["Qwen/Qwen2.5-32B"], 6, 8) == (1, 2)
    assert legal_tp(VLLM, CARDS["Qwen/Qwen2.5-32B"], 32, 4) == (1, 2, 4)
    assert legal_tp(FSDP, CARDS["Qwen/Qwen2.5-32B"], 8, 8) == (1, 2, 4, 8)
    assert legal_tp(TRAITS["hf"], CARDS["Qwen/Qwen2.5-32B"], 8, 8) == (1,)


def test_key_value_heads_may_be_shared_by_ranks() -> None:
    """Megatron Core: num_query_groups must be "a multiple or divisor" of tensor_model_parallel_size; not so FSDP."""
    shape = CARDS["Qwen/Qwen3-30B-A3B"]
    assert shape.kv_heads == 4
    assert layout_fault(VLLM, shape, 8, 1) is None
    assert layout_fault(MEGATRON, shape, 8, 1) is None
    assert "key-value" in (layout_fault(FSDP, shape, 8, 1) or "")


def test_pp_gives_each_stage_a_layer() -> None:
    """Megatron Core shares layers out unevenly where it is told to: 61 layers of DeepSeek-V3 in 16 stages (verl,
    run_deepseek671b_math_megatron_80gb.sh)."""
    assert layout_fault(MEGATRON, CARDS["Qwen/Qwen2.5-32B"], 4, 8) is None
    assert layout_fault(MEGATRON, CARDS["Qwen/Qwen2.5-7B"], 1, 8) is None
    assert "29" in (layout_fault(MEGATRON, CARDS["Qwen/Qwen2.5-7B"], 1, 29) or "")


def test_axes() -> None:
    assert illegal_axis(FSDP, {"tp": 2, "cp": 2}) is None
    assert illegal_axis(FSDP, {"pp": 2}) == "pp"
    assert illegal_axis(TRAITS["deepspeed"], {"tp": 2}) == "tp"
    assert illegal_axis(FSDP, {"dp": 8, "tp": 1}) is None
    assert illegal_axis(VLLM, {"tp": 2, "pp": 2, "ep": 2}) is None
    assert illegal_axis(VLLM, {"tp": 2, "cp": 2}) == "cp"
    assert illegal_axis(MEGATRON, {"tp": 2, "pp": 2}) is None


def test_every_backend_that_runs_a_model_has_traits_of_its_kind() -> None:
    """The runtime has its own list: a backend that is built but has no traits could not be planned."""
    for kind, backend in BACKENDS:
        if backend not in ("data", "function", "torch"):
            assert kind in TRAITS[backend].kinds
    built = {(kind, backend) for kind, backend in BACKENDS}
    planned = {(kind, backend) for kind, backends in PLANNED.items() for backend in backends}
    assert {(kind, name) for name, traits in TRAITS.items() for kind in traits.kinds} <= built | planned
