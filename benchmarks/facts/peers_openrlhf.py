"""OpenRLHF's settings (dotted arguments of openrlhf.cli at HEAD) → Job. Takes a record; knows no planner.

With `train.colocate_all` every role is on the same devices and both sides sleep (`ds.enable_sleep`,
`vllm.enable_sleep`); with `train.async_enable` the engines have devices of their own. An argument that is a flag and is
not given is off.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.facts.jobs import Cut, Job, Party, UnreadableError, packed_tokens, passes_of, share, truth, whole

DEFAULT_RESPONSE = 1024
"""openrlhf's generate_max_len, rollout.max_new_tokens."""
DEFAULT_UTILIZATION = 0.95
CROSS_ENTROPY = "kernel"
"""openrlhf/models/utils.py, log_probs_from_logits: flash-attn's cross-entropy on float32 logits."""
_ROLES = {"actor": "actor_train", "critic": "critic", "ref": "reference", "reward": "reward"}


def job(record: Mapping[str, Any], gpu: tuple[str, str]) -> Job:
    """Raises UnreadableError."""
    of: Mapping[str, Any] = record["settings"]
    longest = whole(of.get("data.max_len"))
    response = whole(of.get("rollout.max_new_tokens"), DEFAULT_RESPONSE)
    if longest <= 0:
        raise UnreadableError("no data.max_len")
    engines = whole(of.get("vllm.num_engines")) * max(1, whole(of.get("vllm.tensor_parallel_size"), 1))
    sizes = {name: _devices(of, name) for name in _ROLES}
    if not sizes["actor"] or not engines:
        raise UnreadableError("no devices of the actor or of the engines")
    shared = truth(of.get("train.colocate_all"))
    apart = not shared or truth(of.get("train.async_enable"))
    pools, homes = _pools(sizes, engines, shared=shared, apart=apart)
    parties = [
        _trained(record, of, name, homes[name], longest, response)
        for name in ("actor", "critic")
        if sizes[name] and (name == "actor" or _gae(of))
    ]
    parties += [_scored(record, of, name, homes[name], longest, response) for name in ("ref", "reward") if sizes[name]]
    parties.append(_generator(record, of, homes["vllm"], longest, sleeps=not apart))
    samples = max(1, whole(of.get("rollout.n_samples_per_prompt"), 1))
    prompts = whole(of.get("rollout.batch_size"), 128)
    per_node = whole(record.get("gpus_per_node"), 8)
    return Job(
        id=str(record["id"]),
        gpu=gpu[0],
        gpu_origin=gpu[1],
        nodes=max(-(-sum(pools.values()) // per_node), 1),
        gpus_per_node=per_node,
        pools=pools,
        parties=tuple(parties),
        prompt_tokens=max(1, longest - response),
        response_tokens=min(response, longest - 1),
        prompts=prompts,
        samples=samples,
        updates=passes_of(prompts * samples, whole(of.get("train.batch_size")), prompts),
        max_lag=1 if truth(of.get("train.async_enable")) else 0,
    )


def _devices(of: Mapping[str, Any], name: str) -> int:
    return whole(of.get(f"{name}.num_nodes")) * whole(of.get(f"{name}.num_gpus_per_node"))


def _gae(of: Mapping[str, Any]) -> bool:
    return str(of.get("algo.advantage.estimator", "gae")) == "gae"


def _pools(
    sizes: Mapping[str, int], engines: int, *, shared: bool, apart: bool
) -> tuple[dict[str, int], dict[str, str]]:
    if shared:
        pools = {"all": sizes["actor"]} | ({"rollout": engines} if apart else {})
        return pools, dict.fromkeys(sizes, "all") | {"vllm": "rollout" if apart else "all"}
    homes = {name: name for name, size in sizes.items() if size} | {"vllm": "rollout"}
    return {name: size for name, size in sizes.items() if size} | {"rollout": engines}, homes


def _is_filled(of: Mapping[str, Any]) -> bool:
    return truth(of.get("ds.packing_samples")) and not truth(of.get("train.dynamic_batch_enable"))


def _tokens(of: Mapping[str, Any], side: str, model: str, longest: int, response: int, spread: int) -> int:
    """`max_tokens_per_gpu` where batches are dynamic, else sequences."""
    budget = whole(of.get(f"{side}.max_tokens_per_gpu"), whole(of.get("train.max_tokens_per_gpu")))
    if truth(of.get("train.dynamic_batch_enable")) and budget:
        return budget * spread
    count = max(1, whole(of.get(f"{side}.micro_batch_size"), 1))
    if not truth(of.get("ds.packing_samples")):
        return count * longest
    return packed_tokens(count, model, max(1, longest - response), min(response, longest - 1))


def _trained(
    record: Mapping[str, Any], of: Mapping[str, Any], name: str, pool: str, longest: int, response: int
) -> Party:
    cut = Cut(cp=max(1, whole(of.get("ds.ring_attn_size"), 1)), tp=max(1, whole(of.get("ds.tensor_parallel_size"), 1)))
    engine: dict[str, Any] = {
        "zero_stage": whole(of.get("ds.zero_stage"), 2),
        "recompute": "full" if truth(of.get("actor.gradient_checkpointing_enable")) else "none",
        "packing": truth(of.get("ds.packing_samples")),
        "cross_entropy": CROSS_ENTROPY,
    }
    engine |= {"offload": True} if truth(of.get("ds.enable_sleep")) else {}
    engine |= {"optimizer_offload": 1.0} if truth(of.get("ds.adam_offload")) else {}
    return Party(
        name=_ROLES[name],
        kind="trainer",
        backend="deepspeed",
        model=str(of.get(f"{name}.model_name_or_path") or record["model"]),
        pool=pool,
        cut=cut,
        update_tokens=_tokens(of, "train", str(record["model"]), longest, response, cut.cp),
        forward_tokens=_tokens(of, "rollout", str(record["model"]), longest, response, cut.cp),
        filled_tokens=_is_filled(of),
        engine=engine,
    )


def _scored(
    record: Mapping[str, Any], of: Mapping[str, Any], name: str, pool: str, longest: int, response: int
) -> Party:
    """OpenRLHF shards frozen models by ZeRO-3 whatever the trainer's stage, if that is 3; else each rank has a copy."""
    stage = whole(of.get("ds.zero_stage"), 2)
    return Party(
        name=_ROLES[name],
        kind="scorer" if name == "ref" else "reward",
        backend="deepspeed",
        model=str(of.get(f"{name}.model_name_or_path") or record["model"]),
        pool=pool,
        cut=Cut(cp=max(1, whole(of.get("ds.ring_attn_size"), 1))),
        forward_tokens=_tokens(
            of, "rollout", str(record["model"]), longest, response, max(1, whole(of.get("ds.ring_attn_size"), 1))
        ),
        filled_tokens=_is_filled(of),
        engine={"zero_stage": 3 if stage == 3 else 1, "cross_entropy": CROSS_ENTROPY},
    )


def _generator(record: Mapping[str, Any], of: Mapping[str, Any], pool: str, longest: int, *, sleeps: bool) -> Party:
    engine: dict[str, Any] = {
        "kv_fraction": share(of.get("vllm.gpu_memory_utilization"), DEFAULT_UTILIZATION),
        "max_model_tokens": longest,
        "cuda_graphs": not truth(of.get("vllm.enforce_eager")),
    }
    engine |= {"offload": truth(of.get("vllm.enable_sleep"))} if sleeps else {}
    return Party(
        name="actor_infer",
        kind="generator",
        backend="vllm",
        model=str(record["model"]),
        pool=pool,
        cut=Cut(tp=max(1, whole(of.get("vllm.tensor_parallel_size"), 1))),
        engine=engine,
    )
