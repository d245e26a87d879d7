"""ROLL's settings (keys of its yaml, device mappings such as `list(range(0,8))`) → Job. Knows no planner.

ROLL keeps the state of a role off its devices while others work there. Its roles may stand on parts of each other's
devices, which pools of a flow may not: roles that overlap share one pool of the devices of them all. Recomputation of
experts alone (recompute_modules: moe, moe_layer_recompute) has no key of a flow: it is read as that of whole layers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from benchmarks.facts.jobs import Cut, Job, Party, UnreadableError, packed_tokens, passes_of, share, truth, whole

DEFAULT_UTILIZATION = 0.8
CROSS_ENTROPY = "kernel"
"""roll/distributed/strategy: Megatron's vocabulary-parallel cross-entropy, OpenRLHF's log_probs_from_logits."""
_PACKED = "sequence_packing_args.max_packed_sequence_length"
_MEGATRON = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
}
_NAMES = {
    "actor_train": "actor_train",
    "student_train": "actor_train",
    "critic": "critic",
    "actor_infer": "actor_infer",
    "student_infer": "actor_infer",
    "reference": "reference",
    "teacher": "reference",
    "rewards.llm_judge": "reward",
    "reward": "reward",
}


def job(record: Mapping[str, Any], gpu: tuple[str, str]) -> Job:
    """Raises UnreadableError."""
    of: Mapping[str, Any] = record["settings"]
    prompt, response = whole(of.get("prompt_length")), whole(of.get("response_length"))
    if prompt <= 0 or response <= 0:
        raise UnreadableError("no prompt_length and response_length")
    told = [key for key in _NAMES if f"{key}.device_mapping" in of]
    unknown = [key for key in told if _has_no_model(of, key)]
    mapped = {key: devices(str(of[f"{key}.device_mapping"])) for key in told if key not in unknown}
    if not any(key.endswith("_train") for key in mapped):
        raise UnreadableError("no device_mapping of a trainer")
    pools, homes = _pools(mapped)
    parties = tuple(_party(record, of, key, homes, prompt, response, len(pools[homes[key]])) for key in mapped)
    prompts = max(1, whole(of.get("rollout_batch_size"), 64))
    samples = max(1, whole(of.get("num_return_sequences_in_group"), 1))
    trainer = next(party for party in parties if party.name == "actor_train")
    train = next(key for key in mapped if _NAMES[key] == "actor_train")
    small = whole(of.get(f"{train}.training_args.per_device_train_batch_size"), 1)
    small *= whole(of.get(f"{train}.training_args.gradient_accumulation_steps"), 1)
    small *= max(1, len(pools[trainer.pool]) // trainer.cut.devices)
    per_node = whole(of.get("num_gpus_per_node"), 8)
    return Job(
        id=str(record["id"]),
        gpu=gpu[0],
        gpu_origin=gpu[1],
        nodes=-(-sum(map(len, pools.values())) // per_node),
        gpus_per_node=per_node,
        pools={name: len(members) for name, members in pools.items()},
        parties=parties,
        prompt_tokens=prompt,
        response_tokens=response,
        prompts=prompts,
        samples=samples,
        updates=passes_of(prompts * samples, small, prompts),
        max_lag=1 if share(of.get("async_generation_ratio"), 0) > 0 else 0,
        filled=tuple(f"{key} is left out: its model is not said" for key in unknown),
    )


def _has_no_model(of: Mapping[str, Any], key: str) -> bool:
    """Of a judge, whose model is another than the policy's."""
    return _NAMES[key] == "reward" and f"{key}.model_args.model_name_or_path" not in of


def devices(text: str) -> frozenset[int]:
    """Of `list(range(0,16))`, `list([0,1,8])` or `[0, 1]`."""
    found: set[int] = set()
    for first, last in re.findall(r"range\((\d+)\s*,\s*(\d+)\)", text):
        found |= set(range(int(first), int(last)))
    plain = re.sub(r"range\([^)]*\)", "", text)
    found |= {int(number) for number in re.findall(r"\d+", plain)}
    if not found:
        raise UnreadableError(f"`{text}` names no devices")
    return frozenset(found)


def _pools(mapped: Mapping[str, frozenset[int]]) -> tuple[dict[str, frozenset[int]], dict[str, str]]:
    """Roles whose devices overlap share a pool. A pool is named after its first role."""
    pools: dict[str, frozenset[int]] = {}
    homes: dict[str, str] = {}
    for key, here in mapped.items():
        touching = [name for name, members in pools.items() if members & here]
        name = touching[0] if touching else _NAMES[key]
        for other in touching[1:]:
            here |= pools.pop(other)
            homes = {role: name if home == other else home for role, home in homes.items()}
        pools[name] = pools.get(name, frozenset()) | here
        homes[key] = name
    return pools, homes


def _party(
    record: Mapping[str, Any],
    of: Mapping[str, Any],
    key: str,
    homes: Mapping[str, str],
    prompt: int,
    response: int,
    count: int,
) -> Party:
    strategy = str(of.get(f"{key}.strategy_args.strategy_name", "megatron_train"))
    where = f"{key}.strategy_args.strategy_config."
    shares = sum(home == homes[key] for home in homes.values()) > 1
    model = str(of.get(f"{key}.model_args.model_name_or_path") or record["model"])
    common: dict[str, Any] = {"name": _NAMES[key], "model": model, "pool": homes[key]}
    if strategy in ("vllm", "sglang") or strategy.startswith("hf"):
        return _engine(of, key, strategy, where, shares, common, count)
    is_trainer = key.endswith("_train") or key == "critic"
    policy = str(record["model"])
    forward = packed_tokens(max(1, whole(of.get(f"{key}.infer_batch_size"), 1)), policy, prompt, response)
    update = whole(of.get(f"{key}.training_args.per_device_train_batch_size"), 1)
    packed = {way: whole(of.get(f"{key}.{_PACKED}_{way}")) for way in ("forward", "train")}
    update_tokens = packed_tokens(max(1, update), policy, prompt, response)
    return Party(
        **common,
        kind="trainer" if is_trainer else "scorer",
        backend=_backend(strategy),
        cut=_cut(of, where, strategy),
        update_tokens=packed["train"] or update_tokens if is_trainer else None,
        forward_tokens=packed["forward"] or forward,
        filled_tokens=not packed["train" if is_trainer else "forward"],
        engine=_state(of, key, where, strategy, is_trainer, count) | ({"offload": True} if shares else {}),
    )


def _backend(strategy: str) -> str:
    for name in ("megatron", "fsdp", "deepspeed"):
        if strategy.startswith(name):
            return name
    raise UnreadableError(f"strategy `{strategy}` is not known")


def _cut(of: Mapping[str, Any], where: str, strategy: str) -> Cut:
    if strategy.startswith("megatron"):
        return Cut(**{axis: max(1, whole(of.get(f"{where}{name}"), 1)) for axis, name in _MEGATRON.items()})
    return Cut(cp=max(1, whole(of.get(f"{where}ulysses_size"), 1)), ep=max(1, whole(of.get(f"{where}ep_size"), 1)))


def _state(of: Mapping[str, Any], key: str, where: str, strategy: str, is_trainer: bool, count: int) -> dict[str, Any]:
    engine: dict[str, Any] = {"cross_entropy": CROSS_ENTROPY}
    if is_trainer:
        off = truth(of.get(f"{key}.model_args.disable_gradient_checkpointing"))
        said = of.get(f"{where}recompute_granularity")
        partly = said == "selective"
        by_experts = "moe" in str(of.get(f"{where}recompute_modules")) or truth(of.get(f"{where}moe_layer_recompute"))
        engine["recompute"] = "none" if off else "selective" if partly and not by_experts else "full"
    experts = whole(of.get(f"{where}expert_tensor_parallel_size"), 1)
    if strategy.startswith("megatron") and whole(of.get(f"{where}{_MEGATRON['ep']}"), 1) > 1:
        engine["expert_tensor_parallel"] = max(1, experts)
    shard = whole(of.get(f"{where}fsdp_size"), count)
    if strategy.startswith("fsdp") and 0 < shard < count:
        engine["shard_devices"] = shard
    if truth(of.get(f"{where}offload_policy")):
        engine |= {"parameter_offload": True} | ({"optimizer_offload": 1.0} if is_trainer else {})
    return engine


def _engine(
    of: Mapping[str, Any], key: str, strategy: str, where: str, shares: bool, common: dict[str, Any], count: int
) -> Party:
    is_generator = common["name"] == "actor_infer"
    if strategy.startswith("hf"):
        offload = {"offload": True} if shares else {}
        return Party(**common, kind="reward", backend="hf", forward_tokens=16384, engine=offload)
    fraction = of.get(f"{where}gpu_memory_utilization", of.get(f"{where}mem_fraction_static"))
    engine: dict[str, Any] = {"kv_fraction": share(fraction, DEFAULT_UTILIZATION)}
    context = whole(of.get(f"{where}max_model_len"))
    engine |= {"max_model_tokens": context} if context else {}
    engine |= {"cuda_graphs": False} if truth(of.get(f"{where}enforce_eager")) else {}
    engine |= {"offload": True} if shares else {}
    said = of.get(f"{where}tensor_parallel_size", of.get(f"{where}tp_size", of.get(f"{key}.num_gpus_per_worker")))
    tp = max(1, whole(said, 1))
    kind = "generator" if is_generator else "reward"
    return Party(**common, kind=kind, backend=strategy, cut=Cut(tp=tp), engine=engine)
