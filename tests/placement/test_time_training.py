"""Training and collectives: formulas against figures worked by hand from the papers they come from, and monotony."""

from __future__ import annotations

from math import ceil, log2
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from flowrl.graph.graph import Kind, Role
from flowrl.graph.params import EngineParams
from flowrl.machine.cluster import NodeGroup
from flowrl.machine.devices import DEVICE_CARDS, node_group
from flowrl.machine.models import CARDS
from flowrl.machine.profile import (
    PROFILE,
    Profile,
    free_constants,
    read_profile,
    value_of,
    with_constants,
    write_profile,
)
from flowrl.machine.shape import ModelShape
from flowrl.machine.traits import TRAITS
from flowrl.placement.cost.ledger import Given
from flowrl.placement.cost.placed import Placed
from flowrl.placement.cost.rates import axis_group, group_of_ranks, rate_inputs
from flowrl.placement.time.collectives import all_reduce_seconds
from flowrl.placement.time.training import Share, forward_lines, update_lines
from flowrl.plan.plan import Layout, LedgerLine, Pool

IDEAL = with_constants(
    PROFILE,
    {
        "device.gpu.train": 1.0,
        "device.gpu.forward": 1.0,
        "device.gpu.traffic": 0.0,
        "device.gpu.decode": 1.0,
        "device.gpu.link": 1.0,
        "device.gpu.network": 1.0,
        "device.gpu.link_latency": 0.0,
        "device.gpu.network_latency": 0.0,
        "device.gpu.overlap": 0.0,
        "device.gpu.layer_seconds": 0.0,
        "device.gpu.micro_batch_seconds": 0.0,
        "backend.fsdp.train": 1.0,
        "backend.megatron.train": 1.0,
        "moe.imbalance": 1.0,
        "moe.layer_seconds": 0.0,
    },
)
"""Devices that do what their catalogue says: what is left is arithmetic."""
A100 = DEVICE_CARDS["A100-80G"]
H100 = DEVICE_CARDS["H100-80G"]


def placed(
    shape: ModelShape,
    layout: Layout,
    *,
    backend: str = "megatron",
    recompute: str = "none",
    group: NodeGroup | None = None,
    profile: Profile = IDEAL,
    **engine: Any,
) -> Placed:
    group = group or node_group(H100, "nodes", max(1, layout.devices // 8), min(8, layout.devices))
    devices = [f"nodes0/{n}/{i}" for n in range(group.nodes) for i in range(group.devices_per_node)]
    pool = Pool(name="all", device=group.device.name, devices=tuple(devices[: layout.devices]), roles=())
    return Placed(
        role=Role(name="actor", kind=Kind.TRAINER, model="m", backend=backend, engine=EngineParams(**engine)),
        pool=pool,
        shape=shape,
        traits=TRAITS[backend],
        layout=layout,
        layout_origin="test",
        offloaded=False,
        recompute=recompute,
        group=group,
        dtype_bytes=2,
        dtype_origin="test",
        kv_origin="test",
        profile=profile,
    )


def lines_of(
    here: Placed, tokens: float, batches: int, row: float = 1.0, *, forward: bool = False
) -> dict[str, LedgerLine]:
    share = Share(Given(tokens, "test"), Given(row, "test"), Given(batches, "test"), Given(1.0, "test"))
    make = forward_lines if forward else update_lines
    return {each.what: each for each in make(here, share, rate_inputs(here, "train", "cluster", 8))}


def bare(name: str) -> ModelShape:
    """The shape of a card."""
    return CARDS[name]


def test_the_flops_of_gpt3_are_those_of_narayanan_2021() -> None:
    """Narayanan et al. 2021, arXiv:2104.04473, equation 3: an iteration with full recomputation does
    96·B·s·l·h²·(1 + s/(6h) + V/(16·l·h)) FLOPs. For GPT-3 (l 96, h 12,288, V 51,200, s 2,048), with plain attention
    over the whole square and 4 passes; here causal attention counts half and the head is recomputed too."""
    layers, hidden, vocab, length = 96, 12288, 51200, 2048
    shape = ModelShape(
        name="gpt3",
        origin="test",
        architecture="gpt",
        layers=layers,
        hidden=hidden,
        heads=96,
        kv_heads=96,
        head_dim=128,
        ffn=4 * hidden,
        ffn_matrices=2,
        vocab=vocab,
        max_positions=length,
        tied=True,
    )
    here = placed(shape, Layout(dp=1), recompute="full", group=node_group(A100, "nodes", 1, 1))
    line = lines_of(here, length, 1, length)["compute"]
    logits = 24 * length * vocab / A100.device.memory_bytes_per_second
    flops = (line.value - logits) * A100.device.bf16_flops_per_second
    theirs = 96 * length * layers * hidden**2 * (1 + length / (6 * hidden) + vocab / (16 * layers * hidden))
    assert flops == pytest.approx(theirs, rel=0.02)


@pytest.mark.parametrize(("recompute", "passes"), [("none", 6), ("selective", 6), ("full", 8)])
def test_flops_per_parameter(recompute: str, passes: int) -> None:
    """6 per parameter and token (Kaplan et al. 2020, arXiv:2001.08361, table 1); full recomputation makes the forward
    pass a second time, a third more (Korthikanti et al. 2022, arXiv:2205.05198, section 4)."""
    shape = bare("meta-llama/Llama-3.1-8B")
    here = placed(shape, Layout(dp=1), recompute=recompute, group=node_group(H100, "nodes", 1, 1))
    line = lines_of(here, 1000, 1, 1)["compute"]
    attention = 4 * shape.layers * shape.q_width * {"none": 3.5, "selective": 4.5, "full": 4.5}[recompute]
    logits = 24 * 1000 * shape.vocab / 3.35e12
    expected = 1000 * (passes * shape.multiplied_parameters + attention) / 989.4e12 + logits
    assert line.value == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("stages", "batches", "bubble"), [(8, 8, 7 / 8), (8, 64, 7 / 64), (4, 1, 3.0), (1, 4, 0.0)])
def test_the_bubble_of_a_pipeline_is_narayanans(stages: int, batches: int, bubble: float) -> None:
    """(p - 1)/m of the ideal time (arXiv:2104.04473, section 2.2.1)."""
    shape = bare("meta-llama/Llama-3.1-70B")
    ideal = lines_of(placed(shape, Layout(pp=1)), 4096 * batches, batches)["compute"].value / stages
    cut = lines_of(placed(shape, Layout(pp=stages)), 4096 * batches, batches)["compute"].value
    logits = 24 * 4096 * batches * shape.vocab / 3.35e12
    bubbled = (ideal - logits / stages + logits) * (1 + bubble)
    assert cut == pytest.approx(bubbled, rel=1e-9)


def test_tensor_parallelism_reduces_four_times_a_layer() -> None:
    """Two all-reduces of b·s·h forward and two backward in a layer (Megatron-LM, arXiv:1909.08053, section 3), each
    2(n - 1)/n of its bytes over the link (nccl-tests, doc/PERFORMANCE.md)."""
    shape = bare("meta-llama/Llama-3.1-8B")
    line = lines_of(placed(shape, Layout(tp=8)), 4096, 1)["tensor parallel"]
    assert line.value == pytest.approx(4 * 32 * (2 * 7 / 8 * 4096 * 4096 * 2) / 450e9, rel=1e-9)


def test_zero_3_gathers_twice_and_scatters_once() -> None:
    """3 Ψ for an update of one micro-batch (ZeRO, arXiv:1910.02054, 7.2.2), where gradients are as large as weights."""
    shape = bare("meta-llama/Llama-3.1-8B")
    here = placed(shape, Layout(dp=8), backend="fsdp", gradient_dtype="bfloat16")
    line = lines_of(here, 1, 1)["communication not hidden"]
    assert line.value == pytest.approx(3 * 2 * shape.parameters * 7 / 8 / 450e9, rel=1e-6)


def test_a_hybrid_shard_gathers_inside_and_reduces_between() -> None:
    """16 ranks in copies of 8: gathers stay in the node, each rank reduces its eighth of float32 gradients with one
    other rank over its own card."""
    shape = bare("meta-llama/Llama-3.1-8B")
    here = placed(shape, Layout(dp=16), backend="fsdp", shard_devices=8)
    inside = (2 * 2 + 4) * shape.parameters * 7 / 8 / 450e9
    between = 2 * 1 / 2 * 4 * shape.parameters / 8 / 50e9
    assert lines_of(here, 1, 1)["communication not hidden"].value == pytest.approx(inside + between, rel=1e-6)


def test_the_ring_of_a_group_takes_the_slowest_link() -> None:
    """Bus bandwidth of nccl-tests: S·2(n - 1)/n / t. Within a node the device link; over two nodes of 8 their cards,
    8 x 50 GB/s, less than 450; one rank a node has one card."""
    shape = bare("meta-llama/Llama-3.1-8B")
    one, two = placed(shape, Layout(dp=8)), placed(shape, Layout(tp=8, dp=2))
    assert all_reduce_seconds(group_of_ranks(one, 8), 1e9) == pytest.approx(2 * 7 / 8 * 1e9 / 450e9)
    assert all_reduce_seconds(group_of_ranks(two, 16), 1e9) == pytest.approx(2 * 15 / 16 * 1e9 / 400e9)
    assert all_reduce_seconds(axis_group(two, "dp"), 1e9) == pytest.approx(2 * 1 / 2 * 1e9 / 50e9)
    assert all_reduce_seconds(axis_group(two, "tp"), 1e9) == pytest.approx(2 * 7 / 8 * 1e9 / 450e9)
    assert all_reduce_seconds(group_of_ranks(one, 1), 1e9) == 0.0


def test_a_rack_of_linked_nodes_is_one_group() -> None:
    """16 GPUs of a GB200 NVL72 lie on four trays but talk by NVLink."""
    trays = node_group(DEVICE_CARDS["GB200"], "nodes", 4, 4)
    here = placed(bare("meta-llama/Llama-3.1-8B"), Layout(dp=16), group=trays)
    group = group_of_ranks(here, 16)
    assert not group.crosses
    assert group.bytes_per_second == 900e9


def test_latency_grows_with_the_logarithm_of_ranks() -> None:
    """Double binary trees (NCCL 2.4): log2 of ranks, up and down, inside nodes and between."""
    profile = with_constants(IDEAL, {"device.gpu.link_latency": 1.0, "device.gpu.network_latency": 1.0})
    here = placed(bare("meta-llama/Llama-3.1-8B"), Layout(dp=64), profile=profile)
    group = group_of_ranks(here, 64)
    hops = log2(8) * here.device.link_seconds + ceil(log2(8)) * here.group.network_seconds
    assert all_reduce_seconds(group, 0) == pytest.approx(2 * hops)


def test_experts_exchange_what_leaves_the_node_over_one_card() -> None:
    """16 expert ranks on two nodes: 8 of 15 others are on the other node; a token's 8 copies of 2,048 bf16 values go
    there and back, forward and backward, on 48 layers (GShard, arXiv:2006.16668)."""
    shape = bare("Qwen/Qwen3-30B-A3B")
    line = lines_of(placed(shape, Layout(dp=16, ep=16)), 4096, 1)["expert parallel"]
    sent = 4096 * 8 * 2048 * 2 * 15 / 16
    assert line.value == pytest.approx(2 * 2 * 48 * sent * (8 / 15) / 50e9, rel=1e-6)


def test_adam_reads_and_writes_thirty_bytes_and_offload_is_slower() -> None:
    """Gradient, master weight and two moments read, 16 bytes; the latter three and a bf16 weight written, 14."""
    shape = bare("meta-llama/Llama-3.1-8B")
    here = placed(shape, Layout(dp=8), backend="fsdp")
    assert lines_of(here, 1, 1)["optimizer step"].value == pytest.approx(30 * shape.parameters / 8 / 3.35e12)
    away = lines_of(placed(shape, Layout(dp=8), backend="fsdp", optimizer_offload=1.0), 1, 1)
    assert away["optimizer step"].value == 0.0
    assert away["optimizer in host memory"].value > 30 * shape.parameters / 8 / 3.35e12


def test_small_products_are_further_from_the_peak() -> None:
    """The roofline: a product of w FLOPs a byte reaches the peak over 1 + R/w, R = 989.4e12/3.35e12 = 295 for H100."""
    profile = with_constants(IDEAL, {"device.gpu.traffic": 1.0})
    shape = bare("meta-llama/Llama-3.1-8B")
    line = lines_of(placed(shape, Layout(), profile=profile), 8192, 1)["compute"]
    intensity = 1 / (1 / 8192 + 1 / 4096 + 1 / 14336)
    assert line.inputs["u"] == pytest.approx(1 + 989.4 / 3.35 / intensity)


LAYOUTS = st.builds(
    lambda dp, tp, pp: Layout(dp=dp, tp=tp, pp=pp),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 2, 4]),
)


@settings(deadline=None, max_examples=60)
@given(LAYOUTS, st.integers(1, 40), st.sampled_from(["none", "selective", "full"]), st.booleans())
def test_more_tokens_and_more_recomputation_take_no_less(
    layout: Layout, batches: int, recompute: str, forward: bool
) -> None:
    shape = bare("Qwen/Qwen2.5-7B")
    here = placed(shape, layout, recompute=recompute, profile=PROFILE)

    def seconds(of: Placed, tokens: float, count: int, row: float) -> float:
        return sum(each.value for each in lines_of(of, tokens, count, row, forward=forward).values())

    once = seconds(here, 8192 * batches, batches, 1000)
    assert seconds(here, 8192 * 2 * batches, 2 * batches, 1000) >= once
    assert seconds(here, 8192 * batches, batches, 4000) >= once
    full = placed(shape, layout, recompute="full", profile=PROFILE)
    assert seconds(full, 8192 * batches, batches, 1000) >= once * (1 - 1e-12)


@settings(deadline=None, max_examples=30)
@given(st.sampled_from([1, 2, 4]), st.integers(4, 64))
def test_more_ranks_never_compute_longer(dp: int, batches: int) -> None:
    shape = bare("Qwen/Qwen2.5-7B")
    few = lines_of(placed(shape, Layout(dp=dp), profile=PROFILE), 8192 * batches, batches)["compute"]
    more = lines_of(placed(shape, Layout(dp=2 * dp), profile=PROFILE), 8192 * batches / 2, ceil(batches / 2))["compute"]
    assert more.value <= few.value


def test_products_in_8_bits_take_half_but_for_the_head_and_their_bytes() -> None:
    """H100: 1,978.9 for 989.5 TFLOP/s. On an ideal device the products of layers take half of what they took, the
    head's and attention as long; what small products wait for memory stays. An A100 has no 8-bit products."""
    shape, layout = bare("Qwen/Qwen3-8B"), Layout(dp=8)
    usual, eight = (placed(shape, layout, backend="fsdp", compute_dtype=each) for each in ("auto", "fp8"))
    one, other = (lines_of(each, 8192, 2)["compute"].value for each in (usual, eight))
    head = shape.output_width * shape.hidden
    saved = 6 * 8192 * (shape.multiplied_parameters - head) / 989.5e12 / 2
    assert one - other == pytest.approx(saved, rel=1e-3)
    old = node_group(A100, "nodes", 1, 8)
    plain, none = (
        lines_of(placed(shape, layout, backend="fsdp", group=old, compute_dtype=each), 8192, 2)["compute"].value
        for each in ("auto", "fp8")
    )
    assert plain == none


# -- the profile itself ------------------------------------------------------------------------------------------------


def test_the_shipped_profile_reads_back_and_lies_in_its_bounds() -> None:
    assert write_profile(read_profile(write_profile(PROFILE))) == write_profile(PROFILE)
    for constant in free_constants(PROFILE):
        assert constant.low <= value_of(PROFILE, constant.path) <= constant.high, constant.path
        assert constant.low <= constant.prior <= constant.high, constant.path


def test_a_generation_of_a_backend_comes_on_top() -> None:
    """`vllm@v0` multiplies what `vllm` says, on the device that it runs on."""
    made = with_constants(PROFILE, {"backend.vllm.decode": 0.5, "backend.vllm@v0.decode": 0.5})
    device, base = H100.device, PROFILE.rates(H100.device, "vllm").decode / PROFILE.rates(H100.device, "none").decode
    now = made.rates(device, "vllm").decode / made.rates(device, "none").decode
    older = replace(made, generation={"vllm": "v0"})
    assert now == pytest.approx(0.5)
    assert base == pytest.approx(value_of(PROFILE, "backend.vllm.decode") if "vllm" in PROFILE.backend else 1.0)
    assert older.rates(device, "vllm").decode / older.rates(device, "none").decode == pytest.approx(0.25)


@pytest.mark.parametrize("text", ["", "origin = 1", 'origin = "mine"\n[device.gpu]\ntrain = "fast"'])
def test_half_a_profile_is_none(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        read_profile(text)
