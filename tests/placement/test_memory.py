"""Memory: ledgers add up, formulas are what is counted, FSDP against traces, engines against vLLM's rules, monotony."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from flowrl.graph.graph import Graph, Kind, Role
from flowrl.graph.params import GenerateParams, OptimizerParams, UpdateParams
from flowrl.machine.devices import DEVICE_CARDS, node_group
from flowrl.machine.models import CARDS
from flowrl.machine.shape import ModelShape
from flowrl.machine.traits import TRAITS
from flowrl.placement.cost.ledger import Given, bytes_of, evaluate
from flowrl.placement.cost.placed import Placed
from flowrl.placement.memory.fsdp import moments as fsdp_moments
from flowrl.placement.memory.fsdp import update_inputs
from flowrl.placement.memory.pool import memory
from flowrl.placement.memory.training import resident_lines
from flowrl.plan.plan import Layout, Memory, Pool, RolePlacement
from tests.placement.flows import GRPO, PPO, with_placement
from tests.placement.told import Told, told_text

GIB = 2**30
TABLE = json.loads((Path(__file__).parent / "fsdp_memory.json").read_text(encoding="utf-8"))["rows"]
OTHERS = json.loads((Path(__file__).parent / "fsdp_memory_others.json").read_text(encoding="utf-8"))["rows"]


def trainer(shape: ModelShape, ranks: int, recompute: str) -> Placed:
    """A trainer on FSDP in bfloat16 with AdamW, on `ranks` devices."""
    role = Role(
        name="actor_train",
        kind=Kind.TRAINER,
        model="policy",
        backend="fsdp",
        trainable=True,
        optimizer=OptimizerParams(),
    )
    layout = Layout(dp=ranks)
    names = tuple(f"node0/{place}" for place in range(ranks))
    placement = RolePlacement(role=role.name, layout=layout, recompute=recompute)
    return Placed(
        role=role,
        pool=Pool(name="train", devices=names, device="H100-80G", roles=(placement,)),
        shape=shape,
        traits=TRAITS["fsdp"],
        layout=layout,
        layout_origin="test",
        offloaded=False,
        recompute=recompute,
        group=node_group(DEVICE_CARDS["H100-80G"], "nodes", 1, ranks),
        dtype_bytes=2,
        dtype_origin="test",
        kv_origin="test",
    )


def modelled_gib(row: dict[str, Any], name: str) -> float:
    placed = trainer(CARDS[name], row["world"], row["act_ckpt"])
    inputs = update_inputs(placed, Given(row["seq"] * row["micro_batch"], "test"))
    at_loss, *later = fsdp_moments(placed, inputs, accumulates="--accum" in row["variant"])
    moments = [at_loss, *later] if row["loss"] == "hf" else later
    return (bytes_of(resident_lines(placed)) + max(map(bytes_of, moments))) / GIB


def name_of(row: dict[str, Any]) -> str:
    return " ".join(str(row[key]) for key in ("world", "seq", "act_ckpt", "loss", "variant")).strip()


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row['size']} {name_of(row)}")
def test_fsdp_peak_is_what_the_tracker_saw(row: dict[str, Any]) -> None:
    """Seen: 15 of 17 rows within 0.05 %, the other two 0.13 % and 0.41 % too high.

    Rows whose loss is not Hugging Face's float32 cross entropy have no logits at the loss: that moment is left out.
    """
    found = modelled_gib(row, f"Qwen/Qwen2.5-{row['size']}")
    assert found == pytest.approx(row["peak_GiB"], rel=0.01)
    assert found >= row["peak_GiB"] * 0.999, "too low is worse than too high"


@pytest.mark.parametrize("row", OTHERS, ids=lambda row: f"{row['name']} {name_of(row)}")
def test_fsdp_peak_of_other_models(row: dict[str, Any]) -> None:
    """Another size, Qwen3 with its norms of queries and keys, Llama.

    Formulas made from the table above alone were off by −3.6 to +4.0 % on the first seven rows; the moments of the
    first and of the last layer were then added from them (−0.1 to +3.9 % now). The last three rows were traced
    after that and changed nothing: 0.0, +0.7 and +1.1 %.
    """
    found = modelled_gib(row, row["name"])
    assert found == pytest.approx(row["peak_GiB"], rel=0.05)
    assert found >= row["peak_GiB"] * 0.99


def phases(told: Told) -> tuple[Memory, ...]:
    return memory(
        told.graph,
        told.placement.pools,
        told.shapes,
        told.cluster,
        request=told.request,
        decisions=told.placement.decisions,
    )


FLOWS = [
    GRPO,
    PPO,
    with_placement(GRPO, "disaggregated"),
    with_placement(PPO, "{pools: {rollout: {gpus: 8, roles: [actor_infer], layouts: {actor_infer: {tp: 4}}}, "
                        "train: {gpus: 8, roles: [actor_train, critic, reference]}}}"),
    with_placement(GRPO.replace("backend: fsdp", "backend: megatron"),
                   "{pools: {a: {gpus: 8, roles: [actor_infer]}, "
                   "b: {gpus: 8, roles: [actor_train, reward], layouts: {actor_train: {tp: 2, pp: 2}}}}}"),
    GRPO.replace("vllm", "hf").replace("{gpu: H100-80G, nodes: 2, gpus_per_node: 8}", "3xcpu"),
]  # fmt: skip


@pytest.mark.parametrize("flow", FLOWS)
def test_lines_add_up_and_formulas_hold(flow: str) -> None:
    told = told_text(flow)
    assert phases(told) == told.placement.memory
    for entry in told.placement.memory:
        assert sum(line.value for line in entry.lines) == entry.peak_bytes
        assert all(line.value >= 0 and line.unit == "bytes" for line in entry.lines)
        for line in entry.lines:
            assert abs(evaluate(line.formula, line.inputs) - line.value) <= 1
            assert set(line.inputs) == set(line.origins)
            assert all(line.origins.values())


def test_every_op_and_transfer_of_a_device_role_has_a_phase() -> None:
    told = told_text(PPO)
    seen = {entry.phase for entry in told.placement.memory}
    held = {entry.role for pool in told.placement.pools if pool.devices for entry in pool.roles}
    assert {op.id for op in told.graph.ops if op.role in held} <= seen
    assert {"send_weights actor_train => actor_infer", "receive_weights actor_train => actor_infer"} <= seen


def test_resident_state_by_hand() -> None:
    """Qwen2.5-7B on 16 ranks: 7,615,616,512 parameters, 4 bytes of master weight and 8 of AdamW each, sharded."""
    told = told_text(with_placement(PPO, "colocated"))
    lines = next(e for e in told.placement.memory if e.phase == "actor_train.update").lines
    state = {line.what: line.value for line in lines if line.role == "actor_train"}
    assert state["master weights"] == 7_615_616_512 * 4 / 16
    assert state["optimizer states"] == 7_615_616_512 * 8 / 16


def test_an_engine_takes_its_fraction_of_the_device() -> None:
    """vLLM: gpu_memory_utilization of what torch sees of the device for weights, workspace, graphs and cache together,
    and its context on top (79.2 GiB of an H100's 79.65; 0.52 GiB: llm-d-fast-model-actuation#746)."""
    told = told_text(with_placement(GRPO, "disaggregated"))
    entry = next(e for e in told.placement.memory if e.phase == "actor_infer.generate")
    own = sum(line.value for line in entry.lines if line.role == "actor_infer")
    assert own == pytest.approx(0.85 * (entry.limit_bytes - 5.0e8) + 5.6e8, abs=4)


def test_an_engine_without_room_for_one_sequence_does_not_start() -> None:
    flow = GRPO.replace("backend: vllm,", "backend: vllm, engine: {kv_fraction: 0.15},")
    told = told_text(flow.replace("nodes: 2, gpus_per_node: 8", "nodes: 1, gpus_per_node: 1"), None)
    start = next(e for e in told.placement.memory if e.phase == "start actor_infer")
    assert start.peak_bytes > start.limit_bytes


def test_a_limit_of_the_context_bounds_the_cache() -> None:
    flow = GRPO.replace("max_response_tokens: 2048", "max_response_tokens: 1400, max_context_tokens: 1500")
    for text, tokens in ((GRPO, 3072), (flow, 1500)):
        told = told_text(text)
        start = next(e for e in told.placement.memory if e.phase == "start actor_infer")
        cache = next(line for line in start.lines if line.what.startswith("KV cache"))
        layouts = {entry.role: entry.layout for pool in told.placement.pools for entry in pool.roles}
        each = 57_344 // layouts["actor_infer"].tp
        assert cache.value == -(-tokens // 16) * 16 * each, "whole blocks of 16 tokens"


def test_offloaded_state_lies_on_the_host() -> None:
    told = told_text(with_placement(GRPO.replace("{recompute: full}", "{recompute: full, offload: true}"), "colocated"))
    host = next(entry for entry in told.placement.memory if entry.phase == "offloaded state")
    away = {entry.role for pool in told.placement.pools for entry in pool.roles if entry.offloaded}
    assert host.pool == "host"
    assert {line.role for line in host.lines if line.what == "offloaded state"} == away
    trainer_bytes = next(line.value for line in host.lines if line.role == "actor_train")
    assert trainer_bytes == 8 * -(-7_615_616_512 * 12 // 16), "8 devices of the node"


def tightest(told: Told) -> int:
    return max(entry.peak_bytes for entry in phases(told) if entry.pool != "host")


def changed(told: Told, graph: Graph, shapes: dict[str, ModelShape] | None = None) -> Told:
    return Told(graph, told.cluster, told.request, shapes or told.shapes, told.placement)


def with_params(graph: Graph, change: Callable[[Any], Any]) -> Graph:
    return replace(graph, ops=tuple(replace(op, params=change(op.params)) for op in graph.ops))


SPLIT = told_text(with_placement(PPO, "disaggregated"))


@settings(deadline=None, max_examples=25)
@given(st.integers(256, 40_000), st.integers(256, 40_000))
def test_more_tokens_in_a_micro_batch_never_need_less(one: int, other: int) -> None:
    def with_tokens(tokens: int) -> Graph:
        return with_params(
            SPLIT.graph, lambda p: replace(p, micro_batch_tokens=tokens) if isinstance(p, UpdateParams) else p
        )

    few, many = sorted((one, other))
    assert tightest(changed(SPLIT, with_tokens(few))) <= tightest(changed(SPLIT, with_tokens(many)))


@settings(deadline=None, max_examples=25)
@given(st.integers(16, 30_000), st.integers(16, 30_000))
def test_longer_responses_never_need_less(one: int, other: int) -> None:
    def with_length(tokens: int) -> Graph:
        return with_params(
            SPLIT.graph, lambda p: replace(p, max_response_tokens=tokens) if isinstance(p, GenerateParams) else p
        )

    short, long = sorted((one, other))
    by_phase = [{e.phase: e.peak_bytes for e in phases(changed(SPLIT, with_length(n)))} for n in (short, long)]
    assert all(by_phase[0][phase] <= by_phase[1][phase] for phase in by_phase[0])


@settings(deadline=None, max_examples=25)
@given(st.sampled_from(["layers", "ffn", "vocab", "hidden"]), st.integers(1, 8))
def test_a_larger_model_never_needs_less(field: str, factor: int) -> None:
    def grown(by: int) -> dict[str, ModelShape]:
        values = {name: getattr(SPLIT.shapes["policy"], name) for name in ModelShape.__dataclass_fields__}
        return SPLIT.shapes | {"policy": ModelShape(**{**values, field: values[field] * by})}

    small, large = (
        {e.phase: e.peak_bytes for e in phases(changed(SPLIT, SPLIT.graph, grown(by)))} for by in (1, factor)
    )
    assert all(small[phase] <= large[phase] for phase in small)


def test_full_recomputation_saves_activations_and_more_ranks_save_state() -> None:
    shape = CARDS["Qwen/Qwen2.5-7B"]
    tokens = Given(16384, "test")

    def peak(ranks: int, recompute: str) -> int:
        placed = trainer(shape, ranks, recompute)
        moments = fsdp_moments(placed, update_inputs(placed, tokens), accumulates=True)
        return bytes_of(resident_lines(placed)) + max(map(bytes_of, moments))

    assert peak(8, "full") < peak(8, "selective") < peak(8, "none")
    assert peak(64, "full") < peak(16, "full") < peak(8, "full")
