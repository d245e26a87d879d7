"""Phases of a pool and of its hosts: what stays while another role works, weights edges in steps, what binds."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from flowrl.machine.profile import PROFILE, with_constants, with_generation
from flowrl.placement.cost.ledger import bytes_of
from flowrl.placement.memory.pool import memory
from flowrl.placement.place import place
from flowrl.placement.request import Placement
from flowrl.plan.plan import Memory, Pool
from tests.placement.flows import GRPO, PPO, with_placement
from tests.placement.told import Told, told_text

GIB = 2**30


def phases(told: Told, away: tuple[str, ...] = (), **profile: str) -> dict[str, Memory]:
    """By name, with the roles `away` offloaded and no other; `profile`: generations of engines."""

    def pool(each: Pool) -> Pool:
        return replace(each, roles=tuple(replace(role, offloaded=role.role in away) for role in each.roles))

    request = replace(told.request, profile=with_generation(PROFILE, profile))
    pools = tuple(pool(each) for each in told.placement.pools)
    return {e.phase: e for e in memory(told.graph, pools, told.shapes, told.cluster, request=request)}


def whats(entry: Memory, role: str) -> list[str]:
    return [line.what for line in entry.lines if line.role == role]


COLOCATED = told_text(with_placement(GRPO, "colocated"))
EDGE = "actor_train => actor_infer"
USUAL = "engine: {kv_fraction: 0.85},"
ALL = ("actor_train", "actor_infer", "reward")


def test_weights_are_synchronised_in_steps() -> None:
    """Export, wake the weights, take the new ones, make the cache (vllm#15254): the cache and the piece that is being
    received are never there together."""
    found = phases(COLOCATED, ALL)
    steps = [phase for phase in found if phase.endswith(EDGE)]
    assert [step.split()[0] for step in steps] == ["send_weights", "wake_weights", "receive_weights", "wake_cache"]
    send, wake, receive, cache = (found[step] for step in steps)
    assert "tensor being sent" in whats(send, "actor_train")
    assert "asleep" in whats(send, "actor_infer")
    assert "KV cache" not in [*whats(wake, "actor_infer"), *whats(receive, "actor_infer")]
    assert "tensor being received" in whats(receive, "actor_infer")
    assert "KV cache" in whats(cache, "actor_infer")
    assert "tensor being received" not in whats(cache, "actor_infer")
    assert wake.peak_bytes < receive.peak_bytes < cache.peak_bytes


def test_an_engine_that_wakes_all_at_once_has_its_cache_while_weights_come_in() -> None:
    """verl#302: before vLLM 0.8.3."""
    old = phases(COLOCATED, ALL, vllm="v0")
    assert {"KV cache", "tensor being received"} <= set(whats(old[f"receive_weights {EDGE}"], "actor_infer"))
    assert f"wake_weights {EDGE}" not in old


def test_by_a_direct_transport_both_ends_are_on_the_device() -> None:
    direct = "{edge: actor_train => actor_infer, transport: cuda_ipc}"
    told = told_text(with_placement(GRPO.replace("- actor_train => actor_infer", f"- {direct}"), "colocated"))
    for name in ("wake_weights", "receive_weights"):
        assert "master weights" in whats(phases(told, ALL)[f"{name} {EDGE}"], "actor_train")
        assert "master weights" not in whats(phases(COLOCATED, ALL)[f"{name} {EDGE}"], "actor_train")
    assert "master weights" not in whats(phases(told, ALL)[f"wake_cache {EDGE}"], "actor_train")


def test_what_sleeps_leaves_a_part_behind() -> None:
    """NeMo-RL#2619: the same recipe with an engine that leaves 9 GB more has so much less to train with."""
    now, then = (phases(COLOCATED, ALL, vllm=each)["actor_train.update"] for each in ("0.20", "0.19"))
    assert {"asleep", "CUDA graphs"} == set(whats(now, "actor_infer"))
    assert now.peak_bytes - then.peak_bytes == 7_500_000_000


def test_validation_is_planned_as_a_rollout_of_its_own() -> None:
    """NeMo-RL#1159: what must be off the devices while an engine generates must be off them for validation too, where
    no weights were sent before."""
    flow = GRPO.replace("data: {train: {source: rows.jsonl, max_prompt_tokens: 1024}}",
                        "data: {train: {source: rows.jsonl, max_prompt_tokens: 1024}, "
                        "val: {source: val.jsonl, max_prompt_tokens: 1024}}")  # fmt: skip
    flow = flow.replace("  - actor_train =>", "  - data.val -> actor_infer.generate@val\n"
                        "  - actor_infer.generate@val -> reward.score@val\n  - actor_train =>")  # fmt: skip
    found = phases(told_text(with_placement(flow, "colocated")), ("actor_infer",))
    rollout, validation = found["actor_infer.generate"], found["actor_infer.generate@val"]
    assert whats(validation, "actor_train") == whats(rollout, "actor_train") != []
    assert validation.peak_bytes == rollout.peak_bytes


def test_allocators_of_those_who_stay_keep_blocks() -> None:
    """Trinity-RFT#541: what a resident trainer's allocator keeps is missing when the engine wakes. 0.25 of its work."""
    found = phases(COLOCATED, ("actor_infer",))
    update, stays = found["actor_train.update"], found[f"receive_weights {EDGE}"]
    work = sum(line.value for line in update.lines if line.role == "actor_train")
    kept = next(line.value for line in stays.lines if line.what == "blocks its allocator keeps")
    held = ("master weights", "optimizer states")
    state = sum(line.value for line in stays.lines if line.role == "actor_train" and line.what in held)
    assert kept == pytest.approx(0.25 * (work - state), abs=2)
    assert "blocks its allocator keeps" not in whats(phases(COLOCATED, ALL)["actor_infer.generate"], "actor_train")


def test_a_piece_of_weights_is_a_bucket_or_the_largest_tensor_or_a_whole_layer() -> None:
    """verl#7987: an engine that quantises on reload keeps a layer until it is complete."""
    name = f"receive_weights {EDGE}"
    shape = COLOCATED.shapes["policy"]

    def piece(told: Told, bucket: float = 0.0) -> float:
        request = replace(told.request, profile=with_constants(PROFILE, {"memory.bucket_bytes": bucket}))
        found = memory(told.graph, told.placement.pools, told.shapes, told.cluster, request=request)
        entry = next(each for each in found if each.phase == name)
        return next(line.value for line in entry.lines if line.what.endswith("being received"))

    assert piece(COLOCATED) == 2 * shape.largest_tensor
    assert piece(COLOCATED, 2e9) == 2e9
    moe = GRPO.replace("Qwen/Qwen2.5-7B", "Qwen/Qwen3-30B-A3B").replace(
        "backend: vllm,", "backend: vllm, engine: {weights_dtype: fp8},"
    )
    told = told_text(with_placement(moe, "colocated"))
    shape = told.shapes["policy"]
    assert piece(told) == 2 * shape.layer_parameters > 2 * shape.largest_tensor


def test_a_hybrid_engine_works_with_the_weights_of_its_trainer() -> None:
    """DeepSpeed-Chat: ZeRO 3 holds a sixteenth of the weights on each device, generation gathers the others."""
    flow = GRPO.replace("backend: fsdp, engine: {recompute: full}", "backend: deepspeed, engine: {recompute: full}")
    flow = flow.replace("backend: vllm,", "backend: deepspeed, engine: {max_sequences: 4},")
    told = told_text(with_placement(flow, "colocated"))
    found = phases(told)
    assert whats(found["actor_train.update"], "actor_infer") == []
    generate = {line.what: line.value for line in found["actor_infer.generate"].lines if line.role == "actor_infer"}
    weights = 2 * told.shapes["policy"].parameters
    assert generate["gathered weights"] == pytest.approx(weights * 15 / 16, abs=2)
    assert generate["KV cache"] == 4 * 3072 * 57_344


def test_every_phase_adds_up_and_says_where_its_inputs_come_from() -> None:
    for entry in phases(COLOCATED, ALL).values():
        assert entry.peak_bytes == bytes_of(entry.lines)
        assert all(set(line.origins) == set(line.inputs) and all(line.origins.values()) for line in entry.lines)


# -- hosts -------------------------------------------------------------------------------------------------------------


def test_a_host_holds_what_is_off_its_devices() -> None:
    """8 devices of a node: states of 12 bytes a parameter over 16 ranks, and each engine's whole weights."""
    whole = "{pools: {all: {gpus: 16, roles: [actor_train, actor_infer, reward], layouts: {actor_infer: {tp: 1}}}}}"
    found = phases(told_text(with_placement(GRPO, whole)), ALL)
    lines = {(line.what, line.role): line.value for line in found["offloaded state"].lines}
    parameters = COLOCATED.shapes["policy"].parameters
    assert lines["offloaded state", "actor_train"] == pytest.approx(8 * parameters * 12 / 16, abs=8)
    assert lines["offloaded state", "actor_infer"] == 8 * 2 * parameters
    assert lines["processes", None] == 8 * 3 * PROFILE.memory.host_process_bytes


def test_an_engine_asleep_at_level_2_has_nothing_on_the_host() -> None:
    flow = GRPO.replace("backend: vllm,", "backend: vllm, engine: {sleep_level: 2},")
    found = phases(told_text(with_placement(flow, "colocated")), ALL)
    assert whats(found["offloaded state"], "actor_infer") == []


def test_activations_that_move_are_on_the_host_in_every_phase() -> None:
    """2 bytes of a hidden unit, of every token of a micro-batch and every layer but those that stay, on 8 devices. They
    lie in pinned memory, which torch does not give back, whether or not the trainer itself leaves."""
    flow = GRPO.replace("{recompute: full}", "{recompute: full, activation_offload: true}")
    told = told_text(with_placement(flow, "colocated"))
    found = phases(told)
    update = next(line for line in found["actor_train.update"].lines if line.what == "activations")
    shape, stay = told.shapes["policy"], PROFILE.training.offloaded_layers
    each = (shape.layers - stay) * update.inputs["T"] * 2 * shape.hidden
    for phase in ("offloaded state", "saving actor_train"):
        lines = {line.what: line.value for line in found[phase].lines if line.role == "actor_train"}
        assert lines["activations"] == 8 * each
    assert whats(phases(COLOCATED)["offloaded state"], "actor_train") == []


def test_one_rank_that_reads_for_all_has_the_whole_model_on_its_host() -> None:
    parameters = COLOCATED.shapes["policy"].parameters
    flow = GRPO.replace("{recompute: full}", "{recompute: full, load: broadcast}")
    whole = phases(told_text(with_placement(flow, "colocated")))["loading"]
    parts = phases(COLOCATED)["loading"]
    assert next(line.value for line in whole.lines if line.role == "actor_train") >= 4 * parameters
    assert bytes_of(parts.lines) < bytes_of(whole.lines)


def test_a_host_that_is_too_small_is_a_verdict() -> None:
    """verl#2245: host memory too small for copies of what is offloaded."""
    full = told_text(with_placement(GRPO.replace("backend: vllm,", f"backend: vllm, {USUAL}"), "colocated"))
    small = replace(full.cluster.groups[0], host_memory_bytes=128 * GIB)
    told = Told(full.graph, replace(full.cluster, groups=(small,)), full.request, full.shapes,
                full.placement)  # fmt: skip
    entry = phases(told, ALL)["offloaded state"]
    assert entry.peak_bytes > entry.limit_bytes == 128 * GIB
    refused = place(told.graph, told.cluster, told.request, told.shapes)
    why = next(each for each in refused.diagnostics if each.code == "FR0501")
    assert " of 128.0 GiB on a node" in str(why)


# -- the line that binds -----------------------------------------------------------------------------------------------

REFERENCE = "reference: {model: policy, backend: fsdp}"
SMALL = "micro_batch_tokens: 3072"
STAYS = "{recompute: full, offload: false}"
IPC = "- {edge: actor_train => actor_infer, transport: cuda_ipc}"
LONG = (("Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-1.5B"), ("max_response_tokens: 2048", "max_response_tokens: 15360"))
BINDING: dict[str, tuple[str, tuple[tuple[str, str], ...], str, str, str]] = {
    "trl#2688: a share of 0.9 beside a trainer that stays": (
        GRPO,
        (
            ("{recompute: full}", STAYS),
            ("backend: vllm,", "backend: vllm, engine: {kv_fraction: 0.9, offload: false},"),
        ),
        "8xH100-80G",
        "actor_train.update",
        "actor_infer KV cache",
    ),
    "verl#302: weights and cache wake together, beside what is sent to them": (
        GRPO,
        (("- actor_train => actor_infer", IPC), ("backend: vllm,", "backend: vllm, engine: {kv_fraction: 0.9},")),
        "8xH100-80G",
        f"receive_weights {EDGE}",
        "actor_infer KV cache",
    ),
    "NeMo-RL#456: log-probs of samples of 16,384 tokens over 151,936 of vocabulary": (
        PPO,
        (
            *LONG,
            (REFERENCE, REFERENCE.replace("fsdp}", "fsdp, micro_batch_tokens: 49152}")),
        ),
        "8xH100-80G",
        "reference.log_probs",
        "reference logits",
    ),
    "OpenRLHF#858: actor, critic and reference of 8B on four cards of 48 GB, none leaves": (
        PPO,
        (
            ("Qwen/Qwen2.5-7B", "meta-llama/Llama-3.1-8B"),
            ("{recompute: full}", STAYS),
            (REFERENCE, REFERENCE.replace("fsdp}", "fsdp, micro_batch_tokens: 3072, engine: {offload: false}}")),
            ("update: {loss: ppo}", f"log_probs: {{{SMALL}}}, update: {{loss: ppo, {SMALL}}}"),
            ("update: {loss: value}", f"update: {{loss: value, {SMALL}}}"),
            ("backend: vllm,", "backend: vllm, engine: {kv_fraction: 0.4},"),
        ),
        "4xL40S",
        "actor_infer.generate",
        "actor_train optimizer states",
    ),
}  # fmt: skip
"""flow, changes of it, cluster, phase and largest line."""
LAYOUTS = {"NeMo-RL#456": (8, "{reference: {tp: 1}}"), "OpenRLHF#858": (4, "{actor_infer: {tp: 2}}")}
"""Of reports whose flow says them: placement of itself cuts a long sequence's logits, and takes engines whole."""


def placement_of(report: str) -> str:
    count, layouts = LAYOUTS.get(report.split(":")[0], (0, ""))
    roles = "roles: [actor_train, actor_infer, critic, reference]"
    return f"{{pools: {{all: {{gpus: {count}, {roles}, layouts: {layouts}}}}}}}" if count else "colocated"


@pytest.mark.parametrize("report", BINDING)
def test_the_binding_line_is_the_cause(report: str) -> None:
    flow, changes, cluster, phase, largest = BINDING[report]
    for old, new in changes:
        assert old in flow
        flow = flow.replace(old, new)
    told = told_text(with_placement(flow, placement_of(report)), cluster)
    if report.startswith("verl#302"):
        old_engine = replace(told.request, profile=with_generation(PROFILE, {"vllm": "v0"}))
        told = replace_placement(told, place(told.graph, told.cluster, old_engine, told.shapes))
    refusal = next(each for each in told.placement.diagnostics if each.code == "FR0501")
    heading, first, *_ = refusal.notes[0].splitlines()
    assert f", {phase}: " in heading
    assert first.strip().startswith(largest)


def replace_placement(told: Told, placement: Placement) -> Told:
    return Told(told.graph, told.cluster, told.request, told.shapes, placement)
