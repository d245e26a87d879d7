"""Training memory by backend: states against papers and sums over ranks, activations against Korthikanti et al., and
that more of anything never needs less. Peaks of FSDP2 in other ways against traces are in test_memory_traces.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl.machine.models import CARDS
from flowrl.machine.shape import ModelShape
from flowrl.placement.cost.ledger import Given, bytes_of, evaluate
from flowrl.placement.memory.activations import mean_activations
from flowrl.placement.memory.stages import stage_layers, stage_of
from flowrl.placement.memory.training import (
    forward_lines,
    resident_lines,
    update_lines,
)
from tests.placement.trainers import by_name, peak, trainer

SMALL, MIXTURE, LATENT = CARDS["Qwen/Qwen3-4B"], CARDS["Qwen/Qwen3-30B-A3B"], CARDS["deepseek-ai/DeepSeek-V3"]
BACKENDS = ("fsdp", "deepspeed", "megatron")


# -- states ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stage", "gigabytes"), [(1, 31.4), (2, 16.6), (3, 1.9)], ids=["optimizer", "gradients", "weights"]
)
def test_zero_states_of_its_paper(stage: int, gigabytes: float) -> None:
    """Rajbhandari et al. 2020, figure 1: gigabytes of a model of 7.5 billion parameters on 64 ranks."""
    placed = trainer(SMALL, "deepspeed", dp=64, zero_stage=stage)
    lines = by_name(update_lines(placed, Given(1, "test"), 2))
    states = lines["weights"] + lines["master weights"] + lines["optimizer states"] + lines["gradients"]
    assert states / SMALL.parameters * 7.5 == pytest.approx(gigabytes, abs=0.05)


@pytest.mark.parametrize("dp", [1, 2, 8])
def test_megatron_bytes_per_parameter(dp: int) -> None:
    """docs/source/api-guide/dist_optimizer.md of Megatron Core: bf16 weights, fp32 gradients: 6 + 12/d; bf16 gradients:
    4 + 12/d."""
    for dtype, whole in (("float32", 6), ("bfloat16", 4)):
        lines = resident_lines(trainer(SMALL, "megatron", dp=dp, gradient_dtype=dtype))
        assert bytes_of(lines) == pytest.approx(SMALL.parameters * (whole + 12 / dp), rel=1e-6)


def test_qwen3_30b_on_megatron_by_hand() -> None:
    """tp 2, pp 2, ep 4 on 16 devices: dp 4. Attention and norms are cut by tp, experts by ep and tp; a stage has 24
    layers and the embedding or the head."""
    placed = trainer(MIXTURE, "megatron", dp=4, tp=2, pp=2, ep=4)
    experts = 24 * 128 * 3 * 2048 * 768
    attention = 2048 * (2 * 4096 + 2 * 512) + 2 * 128
    others = 24 * (attention + 2 * 2048 + 128 * 2048) + 151_936 * 2048
    first = by_name(resident_lines(placed, 0))
    assert first["weights"] == 2 * (others / 2 + experts / 8)
    assert first["gradients"] == 4 * (others / 2 + experts / 8)
    assert first["master weights"] == 4 * (others / 8 + experts / 8)
    last = by_name(resident_lines(placed, 1))
    assert last["weights"] == pytest.approx(first["weights"] + 2 * 2048 / 2, abs=2), "the last norm"


def test_experts_are_whole_where_ep_leaves_no_ranks_for_tp() -> None:
    alone = trainer(MIXTURE, "megatron", dp=1, tp=8, ep=8)
    experts = MIXTURE.expert_parameters_total
    others = MIXTURE.parameters - experts
    assert by_name(resident_lines(alone))["weights"] == 2 * (others / 8 + experts / 8)


def test_experts_are_shared_by_as_many_ranks_as_asked() -> None:
    cut = by_name(resident_lines(trainer(MIXTURE, "megatron", dp=4, tp=2, ep=4)))
    whole = by_name(resident_lines(trainer(MIXTURE, "megatron", dp=4, tp=2, ep=4, expert_tensor_parallel=1)))
    experts = MIXTURE.expert_parameters_total
    assert whole["weights"] - cut["weights"] == 2 * (experts / 4 - experts / 8)
    assert whole["optimizer states"] == cut["optimizer states"], "cut over all ranks either way"


LAYOUTS: tuple[dict[str, int], ...] = (
    {"dp": 8},
    {"dp": 4, "tp": 2},
    {"dp": 2, "tp": 2, "cp": 2},
    {"dp": 8, "ep": 4},
    {"dp": 4, "cp": 2, "ep": 8},
)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("shape", [SMALL, MIXTURE], ids=lambda shape: shape.name)
def test_fsdp_states_of_all_ranks_are_one_model(shape: ModelShape, layout: dict[str, int]) -> None:
    if layout.get("ep", 1) > 1 and not shape.experts:
        return
    lines = by_name(resident_lines(trainer(shape, "fsdp", **layout)))
    ranks = layout["dp"] * layout.get("tp", 1) * layout.get("cp", 1)
    assert lines["master weights"] * ranks == pytest.approx(4 * shape.parameters, abs=4 * ranks)
    assert lines["optimizer states"] * ranks == pytest.approx(8 * shape.parameters, abs=4 * ranks)


@pytest.mark.parametrize("layout", [{"dp": 4}, {"dp": 2, "cp": 2}], ids=str)
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_zero_states_of_all_ranks_are_one_model(stage: int, layout: dict[str, int]) -> None:
    lines = by_name(resident_lines(trainer(SMALL, "deepspeed", zero_stage=stage, **layout)))
    assert 4 * lines["master weights"] == pytest.approx(4 * SMALL.parameters, abs=8)
    assert lines["weights"] == pytest.approx(2 * SMALL.parameters / (4 if stage == 3 else 1), abs=1)


MEGATRON_LAYOUTS: tuple[dict[str, int], ...] = (
    {"dp": 4},
    {"dp": 2, "tp": 2},
    {"dp": 2, "tp": 2, "pp": 4},
    {"dp": 2, "pp": 3},
    {"dp": 4, "pp": 2, "ep": 4},
    {"dp": 2, "tp": 4, "ep": 8},
    {"dp": 2, "cp": 2, "tp": 2, "ep": 2},
)


@pytest.mark.parametrize("layout", MEGATRON_LAYOUTS, ids=str)
@pytest.mark.parametrize("shape", [SMALL, MIXTURE, LATENT], ids=lambda shape: shape.name)
def test_megatron_states_of_all_ranks_are_one_model(shape: ModelShape, layout: dict[str, int]) -> None:
    """Summed over stages and ranks there is each optimizer state once, and each weight once for each replica; a tied
    head is on the last stage once more."""
    placed = trainer(shape, "megatron", **layout)
    sizes = {axis: layout.get(axis, 1) for axis in ("dp", "tp", "pp", "cp", "ep")}
    ranks = sizes["dp"] * sizes["tp"] * sizes["cp"]
    stages = [by_name(resident_lines(placed, stage)) for stage in range(sizes["pp"])]
    again = shape.embedding_parameters if shape.tied and sizes["pp"] > 1 else 0
    held = shape.parameters + again
    slack = 1e-6 * 12 * held
    assert sum(s["master weights"] for s in stages) * ranks == pytest.approx(4 * held, abs=slack)
    assert sum(s["optimizer states"] for s in stages) * ranks == pytest.approx(8 * held, abs=slack)
    experts, others = shape.expert_parameters_total, held - shape.expert_parameters_total
    expert_tp = sizes["tp"] if sizes["ep"] <= sizes["dp"] * sizes["cp"] else 1
    weights = 2 * (others / sizes["tp"] + experts / (sizes["ep"] * expert_tp))
    assert sum(s["weights"] for s in stages) == pytest.approx(weights, rel=1e-6)


@pytest.mark.parametrize("pp", [1, 2, 3, 4, 7, 16])
@pytest.mark.parametrize("shape", [SMALL, MIXTURE, LATENT], ids=lambda shape: shape.name)
def test_stages_add_up(shape: ModelShape, pp: int) -> None:
    stages = [stage_of(shape, pp, stage) for stage in range(pp)]
    again = shape.embedding_parameters if shape.tied and pp > 1 else 0
    assert sum(stage.layers for stage in stages) == shape.layers
    assert sum(stage.experts for stage in stages) == shape.expert_parameters_total
    assert sum(stage.others + stage.experts for stage in stages) == pytest.approx(shape.parameters + again, abs=pp)


def test_ends_of_a_pipeline_have_fewer_layers() -> None:
    assert stage_layers(61, 4) == (15, 16, 15, 15)
    assert stage_layers(62, 4) == (15, 16, 16, 15)
    assert stage_layers(63, 4) == (16, 16, 16, 15)


def test_a_hybrid_shard_holds_one_model_for_each_replica() -> None:
    placed = trainer(SMALL, dp=16, shard_devices=4)
    assert by_name(resident_lines(placed))["master weights"] == SMALL.parameters


def test_optimizers_by_bytes() -> None:
    """AdamW in float32: 8 bytes. 8-bit: a byte each and 4 bytes for 256 numbers (Dettmers et al. 2022, section 2)."""

    def states(optimizer: str, **engine: Any) -> float:
        return by_name(resident_lines(trainer(SMALL, optimizer=optimizer, **engine))).get("optimizer states", 0)

    assert states("adamw") == 8 * SMALL.parameters
    assert states("adamw", master_dtype="bfloat16") == 4 * SMALL.parameters
    assert states("adamw_8bit") == pytest.approx((2 + 8 / 256) * SMALL.parameters, abs=1)
    assert states("sgd") == 0


def test_an_adapter_has_the_only_gradients_and_states() -> None:
    """Base in the model's dtype, or as `master_dtype` says; 4 + 8 bytes of an adapter's parameter, and its gradient."""
    count = 33_030_144
    lines = by_name(update_lines(trainer(SMALL, dp=4, adapter=count, recompute="full"), Given(4096, "test"), 1))
    assert lines["weights"] == pytest.approx(2 * SMALL.parameters / 4, abs=1)
    assert lines["adapter master weights"] + lines["adapter optimizer states"] + lines["gradients"] == 16 * count / 4
    assert "root gradients" not in lines
    wide = by_name(resident_lines(trainer(SMALL, dp=4, adapter=count, master_dtype="float32")))
    assert wide["weights"] == 4 * SMALL.parameters / 4


# -- activations -------------------------------------------------------------------------------------------------------


def gpt(hidden: int, heads: int, layers: int) -> ModelShape:
    """As in Korthikanti et al.: attention of the hidden width, an ungated feed-forward of four times that."""
    return replace(
        SMALL,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn=4 * hidden,
        ffn_matrices=2,
        qk_norm=False,
    )


@pytest.mark.parametrize(("hidden", "heads", "layers"), [(6144, 64, 48), (12288, 96, 96), (20480, 128, 105)])
def test_activations_of_korthikanti(hidden: int, heads: int, layers: int) -> None:
    """arXiv:2205.05198, table 2: 34 bytes a token and hidden unit with attention recomputed (as flash attention does);
    2 of them are dropout masks (11sbh has 1 of attention's output, 19sbh 1 of the feed-forward's). With sequence
    parallelism all is cut by t; without it 10 are not, of which 2 are masks. The rest of ours is flash attention's
    log-sum-exp and the norms' inverse roots."""
    shape, t = gpt(hidden, heads, layers), 8

    def kept(**keys: Any) -> float:
        return mean_activations(trainer(shape, "megatron", **keys)).value

    extra = 4 * heads + 8
    assert kept() == 32 * hidden + extra
    assert kept(tp=t) == pytest.approx((32 * hidden + extra) / t)
    assert kept(tp=t, sequence_parallel=False) == pytest.approx(8 * hidden + 8 + (24 * hidden + 4 * heads) / t)


def test_full_recomputation_keeps_inputs_of_layers_alone() -> None:
    """Korthikanti et al., table 2: 2sbh of a layer; without sequence parallelism whole on each rank."""
    tokens, one = Given(4096, "test"), 4096 * 2 * SMALL.hidden
    for keys, cut in (({}, 1), ({"tp": 4}, 4), ({"tp": 4, "sequence_parallel": False}, 1)):
        lines = by_name(update_lines(trainer(SMALL, "megatron", recompute="full", **keys), tokens, 1))
        assert lines["activations"] == pytest.approx(SMALL.layers * one / cut, abs=1)


def test_a_stage_keeps_the_micro_batches_in_flight() -> None:
    """1F1B: pp - stage micro-batches, no more than there are (Narayanan et al. 2021, section 2.2)."""
    placed = trainer(SMALL, "megatron", pp=4, recompute="full")
    one = 9 * 4096 * 2 * SMALL.hidden
    for stage, many, flight in ((0, 16, 4), (1, 16, 3), (3, 16, 1), (0, 2, 2)):
        lines = by_name(update_lines(placed, Given(4096, "test"), many, stage))
        assert lines["activations"] == flight * one


def test_copies_of_a_token_at_experts_by_hand() -> None:
    """Qwen3-30B-A3B, Megatron: 8 copies of 2,048 in and 3 x 768 between, in bf16, and 128 scores twice in
    float32; beside two norms with in- and outputs and attention with norms of queries and keys."""
    norms, attention = 2 * (2 * 2 * 2048 + 4), 2 * 2 * (4096 + 512) + 4 * 32 + 2 * (4096 + 512)
    experts = 8 * (2 * 2048 + 3 * 2 * 768) + 8 * 128
    assert mean_activations(trainer(MIXTURE, "megatron")).value == norms + attention + experts
    uneven = trainer(MIXTURE, "megatron", dp=8, ep=8)
    more = (uneven.profile.moe.imbalance - 1) * 8 * (2 * 2048 + 3 * 2 * 768)
    assert mean_activations(uneven).value == pytest.approx(norms + attention + experts + more)


def test_selective_recomputation_is_between() -> None:
    for backend in BACKENDS:
        peaks = [peak(trainer(SMALL, backend, dp=8, recompute=way)) for way in ("full", "selective", "none")]
        assert peaks == sorted(peaks)


# -- logits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_logits_by_the_way_they_are_made(backend: str) -> None:
    tokens = Given(32_768, "test")

    def logits(way: str, shape: ModelShape = SMALL, **keys: Any) -> float:
        placed = trainer(shape, backend, dp=64, recompute="full", cross_entropy=way)
        return by_name(update_lines(placed, tokens, 1, **keys)).get("logits", 0)

    assert logits("whole") == 12 * 32_768 * 151_936
    assert logits("whole", held=True) == 18 * 32_768 * 151_936
    assert logits("chunked") in (0, 14 * 2048 * 151_936), "0: another moment is the peak"
    assert logits("fused") in (0, 14 * 32_768 * 2048)
    assert logits("whole", replace(SMALL, head="scalar")) == 0, "one number a token"


def test_log_probs_have_logits_too() -> None:
    """NVIDIA-NeMo/RL issue 456: 16,384 tokens of 151,936 logits are 9.3 GiB in float32 before copies."""
    lines = by_name(forward_lines(trainer(SMALL, dp=8, trains=False), Given(16_384, "test")))
    assert lines["logits"] > 9.2 * 2**30
    chunked = forward_lines(trainer(SMALL, dp=8, trains=False, cross_entropy="chunked"), Given(16_384, "test"))
    assert bytes_of(chunked) < bytes_of(list(forward_lines(trainer(SMALL, dp=8, trains=False), Given(16_384, "test"))))


# -- monotony ----------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(BACKENDS),
    st.sampled_from([SMALL, MIXTURE, LATENT]),
    st.sampled_from(["none", "selective", "full"]),
    st.sampled_from(["whole", "chunked", "fused"]),
    st.integers(1, 100_000),
    st.integers(1, 100_000),
    st.integers(1, 4),
)
def test_more_tokens_never_need_less_and_lines_are_their_formulas(
    backend: str, shape: ModelShape, recompute: str, way: str, one: int, other: int, micro_batches: int
) -> None:
    placed = trainer(shape, backend, dp=8, recompute=recompute, cross_entropy=way)
    few, many = sorted((one, other))
    assert peak(placed, few, micro_batches) <= peak(placed, many, micro_batches)
    assert peak(placed, few, 1) <= peak(placed, few, micro_batches)
    for lines in (update_lines(placed, Given(many, "test"), micro_batches), forward_lines(placed, Given(few, "test"))):
        for line in lines:
            assert line.value >= 0
            assert abs(evaluate(line.formula, line.inputs) - line.value) <= 1
            assert set(line.inputs) == set(line.origins)
            assert all(line.origins.values())


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(BACKENDS),
    st.sampled_from([SMALL, MIXTURE]),
    st.sampled_from(["dp", "tp", "pp", "cp"]),
    st.sampled_from([1, 2]),
    st.sampled_from(["none", "full"]),
)
def test_more_devices_never_need_more_states(
    backend: str, shape: ModelShape, axis: str, size: int, recompute: str
) -> None:
    if axis not in trainer(shape, backend).traits.axes:  # type: ignore[union-attr]
        return

    def states(count: int) -> int:
        layout = {"dp": 2, "tp": 1, "pp": 1, "cp": 1} | {axis: count}
        placed = trainer(shape, backend, recompute=recompute, **layout)
        return max(bytes_of(resident_lines(placed, stage)) for stage in range(layout["pp"]))

    assert states(2 * size) <= states(size)
