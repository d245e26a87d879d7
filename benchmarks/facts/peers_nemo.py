"""NeMo RL's settings (keys of examples/configs) → Job. Takes a record; knows no planner.

Colocated roles leave the devices for each other: `offload_before_refit` moves optimizer states to the host before
generation, `offload_after_refit` the rest; the reference's weights live on the host and are swapped in
(nemo_rl/models/policy). Gradients of Megatron are reduced in bfloat16 (distributed_data_parallel_config of
grpo_math_1B_megatron.yaml, from which recipes inherit). Budgets of tokens are those of a whole sequence, before context
parallelism cuts it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.facts.jobs import Cut, Job, Party, UnreadableError, passes_of, share, truth, whole

_VLLM = "policy.generation.vllm_cfg."
_MEGATRON = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
}


def job(record: Mapping[str, Any], gpu: tuple[str, str]) -> Job:
    """Raises UnreadableError."""
    of: Mapping[str, Any] = record["settings"]
    longest = whole(of.get("policy.max_total_sequence_length"))
    if longest <= 0:
        raise UnreadableError("no max_total_sequence_length")
    nodes = whole(of.get("cluster.num_nodes"), whole(record.get("num_nodes"), 1))
    per_node = whole(of.get("cluster.gpus_per_node"), whole(record.get("gpus_per_node"), 8))
    pools, train, rollout = _pools(of, nodes, per_node)
    policy = _trainer(record, of, "policy", "actor_train", train, longest, shares=train == rollout)
    parties = [policy, _generator(record, of, rollout, longest, shares=train == rollout)]
    if any(key.startswith("value.") for key in of):
        parties.append(_trainer(record, of, "value", "critic", train, longest, shares=True))
    if share(of.get("loss_fn.reference_policy_kl_penalty"), 0.0) > 0:
        parties.append(_reference(policy))
    kind = next((key for key in ("grpo", "ppo") if f"{key}.num_prompts_per_step" in of), "grpo")
    prompts = whole(of.get(f"{kind}.num_prompts_per_step"), 32)
    samples = whole(of.get(f"{kind}.num_generations_per_prompt"), 1)
    return Job(
        id=str(record["id"]),
        gpu=gpu[0],
        gpu_origin=gpu[1],
        nodes=nodes,
        gpus_per_node=per_node,
        pools=pools,
        parties=tuple(parties),
        prompt_tokens=longest // 2,
        response_tokens=min(longest, whole(of.get("policy.generation.max_new_tokens"), longest)),
        context_tokens=longest,
        prompts=prompts,
        samples=samples,
        updates=passes_of(prompts * samples, whole(of.get("policy.train_global_batch_size")), prompts),
        max_lag=1 if truth(of.get(f"{kind}.async_{kind}.enabled")) else 0,
        filled=("a prompt has at most half of the sequence",),
    )


def _pools(of: Mapping[str, Any], nodes: int, per_node: int) -> tuple[dict[str, int], str, str]:
    if truth(of.get("policy.generation.colocated.enabled"), True):
        return {"all": nodes * per_node}, "all", "all"
    away = "policy.generation.colocated.resources."
    apart = max(1, whole(of.get(f"{away}num_nodes"), 1)) * whole(of.get(f"{away}gpus_per_node"), per_node)
    if not 0 < apart < nodes * per_node:
        raise UnreadableError("generation is not colocated and its devices are not told")
    return {"train": nodes * per_node - apart, "rollout": apart}, "train", "rollout"


def _tokens(of: Mapping[str, Any], which: str, sequences: str, longest: int) -> int:
    for way in ("sequence_packing", "dynamic_batching"):
        if truth(of.get(f"policy.{way}.enabled")) and whole(of.get(f"policy.{way}.{which}_mb_tokens")):
            return whole(of[f"policy.{way}.{which}_mb_tokens"])
    return max(1, whole(of.get(sequences), 1)) * longest


def _trainer(
    record: Mapping[str, Any], of: Mapping[str, Any], key: str, name: str, pool: str, longest: int, *, shares: bool
) -> Party:
    is_megatron = truth(of.get(f"{key}.megatron_cfg.enabled"), not truth(of.get(f"{key}.dtensor_cfg.enabled")))
    where = f"{key}.megatron_cfg." if is_megatron else f"{key}.dtensor_cfg."
    names = _MEGATRON if is_megatron else {"tp": "tensor_parallel_size", "cp": "context_parallel_size"}
    cut = Cut(**{axis: max(1, whole(of.get(f"{where}{each}"), 1)) for axis, each in names.items()})
    own = where if f"{where}activation_checkpointing" in of else where.replace(key, "policy", 1)
    engine: dict[str, Any] = {
        "recompute": "full" if truth(of.get(f"{own}activation_checkpointing")) else "none",
        "packing": truth(of.get("policy.sequence_packing.enabled")),
    }
    engine |= {"offload": True} if shares else {}
    if is_megatron and cut.tp > 1:
        engine["sequence_parallel"] = truth(of.get(f"{own}sequence_parallel"), True)
    experts = whole(of.get(f"{where}expert_tensor_parallel_size"), 1)
    if is_megatron and cut.ep > 1:
        engine["expert_tensor_parallel"] = max(1, experts)
    reduced = f"{own}distributed_data_parallel_config.grad_reduce_in_fp32"
    if is_megatron and not truth(of.get(reduced)):
        engine["gradient_dtype"] = "bfloat16"
    if truth(of.get(f"{where}cpu_offload")):
        engine |= {"parameter_offload": True, "optimizer_offload": 1.0}
    if truth(of.get(f"{where}optimizer.optimizer_cpu_offload")):
        engine["optimizer_offload"] = share(of.get(f"{where}optimizer.optimizer_offload_fraction"), 1.0) or 1.0
    lora = f"{where}lora_cfg." if not is_megatron else f"{where}peft."
    return Party(
        name=name,
        kind="trainer",
        backend="megatron" if is_megatron else "fsdp",
        model=str(of.get(f"{key}.model_name") or record["model"]),
        pool=pool,
        cut=cut,
        update_tokens=_tokens(of, "train", f"{key}.train_micro_batch_size", longest),
        forward_tokens=_tokens(of, "logprob", "policy.logprob_batch_size", longest),
        lora_rank=whole(of.get(f"{lora}dim")) or None if truth(of.get(f"{lora}enabled")) else None,
        engine=engine,
    )


def _reference(policy: Party) -> Party:
    kept = {key: policy.engine[key] for key in ("sequence_parallel",) if key in policy.engine}
    return Party(
        name="reference",
        kind="scorer",
        backend=policy.backend,
        model=policy.model,
        pool=policy.pool,
        cut=policy.cut,
        forward_tokens=policy.forward_tokens,
        lora_rank=policy.lora_rank,
        engine={"offload": True, **kept},
    )


def _generator(record: Mapping[str, Any], of: Mapping[str, Any], pool: str, longest: int, *, shares: bool) -> Party:
    tp, pp = whole(of.get(f"{_VLLM}tensor_parallel_size"), 1), whole(of.get(f"{_VLLM}pipeline_parallel_size"), 1)
    engine: dict[str, Any] = {
        "kv_fraction": share(of.get(f"{_VLLM}gpu_memory_utilization"), 0.6),
        "max_model_tokens": whole(of.get(f"{_VLLM}max_model_len"), longest) or longest,
        "cuda_graphs": not truth(of.get(f"{_VLLM}enforce_eager")),
    }
    engine |= {"offload": True} if shares else {}
    if str(of.get(f"{_VLLM}kv_cache_dtype")).startswith("fp8"):
        engine["kv_dtype"] = "fp8"
    if str(of.get(f"{_VLLM}precision")).startswith("fp8"):
        engine["weights_dtype"] = "fp8"
    expert = max(1, whole(of.get(f"{_VLLM}expert_parallel_size"), 1))
    return Party(
        name="actor_infer",
        kind="generator",
        backend="vllm",
        model=str(record["model"]),
        pool=pool,
        cut=Cut(tp=max(1, tp), pp=max(1, pp), ep=expert),
        engine=engine,
    )
