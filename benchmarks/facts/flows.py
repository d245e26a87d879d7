"""A case → the flow and the cluster that FlowRL plans: the language as a user would write it, pools and layouts given.

Takes a Case, gives a document (JSON is YAML). Knows no times.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.facts.rules import IN_PLACE, MICRO_BATCH_TOKENS, Case
from flowrl.machine.devices import DEVICE_CARDS, node_group
from flowrl.machine.profile import PROFILE
from flowrl.machine.traits import ENGINES, TRAITS
from flowrl.spec.blocks import EngineDocument

FOLDER = Path(__file__).parent
"""Where `reward.py:score` is found."""
AXES = ("tp", "pp", "cp", "ep")
WIRE = 0.85
"""Of a network card that all devices of a node share, in large collectives (nccl-tests: 20 to 24 of 25 GB/s)."""
MODULES_OF_TRAINER = ("real", "real-heuristic")
"""Systems that decode with the modules of their trainer, launch by launch, and not with an engine of its own."""
HALF_GRADIENTS = ("nemo",)
"""Systems that reduce gradients in 16 bits: NeMo RL's examples/configs/grpo_math_1B.yaml, which its recipes start from,
has grad_reduce_in_fp32: false."""
MODELS = {"actor": "policy", "critic": "value", "reward": "reward_model", "cost": "cost_model"}


def text_of(document: dict[str, Any]) -> str:
    """The document as YAML."""
    return json.dumps(document)


def document_of(case: Case, *, layouts: bool = True) -> dict[str, Any]:
    """The flow of a case on its cluster. Without `layouts` the planner chooses them."""
    common = {
        "flowrl": 1,
        "name": "record",
        "cluster": _cluster(case),
        "models": _models(case),
        "data": {"train": {"source": "train.jsonl", "prompt": "prompt", "max_prompt_tokens": prompt_limit(case)}},
        "step": _step(case),
        "assume": {"actor_infer.generate": {"response_tokens": round(case.response_mean)}},
        "placement": {"pools": _pools(case, layouts)},
        "run": {"steps": 100},
    }
    if case.lag:
        common["schedule"] = {"max_lag": case.lag, **({"partial_rollout": True} if case.partial else {})}
    if case.algorithm in ("remax", "safe_rlhf"):
        return common | {"use": case.algorithm, "roles": _roles(case)}
    return common | {"roles": _roles(case) | _advantage(case), "edges": _edges(case)}


def _step(case: Case) -> dict[str, Any]:
    found: dict[str, Any] = {"prompts": case.prompts, "samples_per_prompt": case.samples, "updates": case.updates}
    return found | ({"refill": {"max_rounds": 1, "oversample": case.draws}} if case.draws > 1 else {})


def prompt_limit(case: Case) -> int:
    """The planner takes a mean prompt to be half of the most."""
    return max(2, round(2 * case.prompt_mean))


def _cluster(case: Case) -> dict[str, Any]:
    found = {"gpu": case.gpu, "nodes": max(1, case.count // case.per_node), "gpus_per_node": case.per_node}
    wire = case.record.network(case.per_node)
    return found if wire is None else found | {"links": {"network_bytes_per_second": _nominal(case, wire)}}


def _nominal(case: Case, wire: float) -> float:
    """The nominal rate of which the profile's share is WIRE of `wire`, at most the catalogue's: the share was fitted on
    clusters where each device has a fast card of its own, which something else than the wire holds back."""
    group = node_group(DEVICE_CARDS[case.gpu], "nodes", 1, case.per_node)
    share = PROFILE.rates(group.device, case.train_backend).network
    return min(group.network_bytes_per_second, WIRE * wire / share)


def _models(case: Case) -> dict[str, Any]:
    found: dict[str, Any] = {"policy": {"source": case.models["actor"]}}
    for part in ("critic", "reward", "cost"):
        if part in case.models or (part == "cost" and case.algorithm == "safe_rlhf"):
            source = case.models.get(part, case.models["actor"])
            found[MODELS[part]] = {"source": source, "head": "scalar"}
    if case.algorithm == "safe_rlhf":
        found["cost_value"] = {"source": case.models.get("critic", case.models["actor"]), "head": "scalar"}
    return found


def _roles(case: Case) -> dict[str, Any]:
    longest = prompt_limit(case) + case.response_most
    micro = longest if case.record.engine == "nemo" else max(MICRO_BATCH_TOKENS, longest)
    trains = {"backend": case.train_backend, "engine": _engine(case)}
    kept = {key: value for key, value in _engine(case).items() if key in ("packing", "offload")}
    scores = {"backend": case.train_backend, "engine": kept}
    update: dict[str, Any] = {"loss": "ppo", "micro_batch_tokens": micro}
    if case.algorithm == "remax":
        update["loss"] = "reinforce"
    else:
        update["old_log_probs"] = case.old_log_probs
    forward = {"log_probs": {"micro_batch_tokens": micro}}
    found: dict[str, Any] = {
        "actor_train": {"model": "policy", **trains, **forward, "update": update},
        "actor_infer": {
            "model": "policy",
            "backend": case.rollout_backend,
            "generate": {"max_response_tokens": case.response_most},
            "engine": _generating(case),
        },
        "reward": {"kind": "reward", "function": "reward.py:score"},
    }
    if _has(case, "reference"):
        found["reference"] = {"model": "policy", **scores}
        if case.algorithm == "grpo":
            update["kl"] = {"coef": 0.001, "form": "k3"}
    if case.draws > 1:
        found["informative"] = {"kind": "filter", "rule": "zero_spread", "unit": "group", "by": "reward.rewards"}
    if _has(case, "reward"):
        found["reward"] = {"kind": "reward", "model": "reward_model", **scores}
    value = {"loss": "value", "micro_batch_tokens": micro}
    if _has(case, "critic"):
        found["critic"] = {"model": "value", **trains, "update": value}
    if case.algorithm == "safe_rlhf":
        found["cost"] = {"kind": "reward", "model": "cost_model", **scores}
        found["cost_critic"] = {"kind": "trainer", "model": "cost_value", **trains, "update": value}
    return found


def _has(case: Case, role: str) -> bool:
    return any(role in pool.roles for pool in case.pools)


def _advantage(case: Case) -> dict[str, Any]:
    if case.algorithm == "ppo":
        return {"advantage": {"estimator": "gae", "gamma": 1.0, "lam": 0.95, "kl": {"coef": 0.001, "form": "k1"}}}
    return {"advantage": {"estimator": "grpo"}}


def _edges(case: Case) -> list[str]:
    source, update = "actor_infer.generate", ["actor_train.update"]
    reads, into = ["reward.score"], ["reward.score"]
    if case.algorithm == "ppo":
        reads += ["reference.log_probs", "critic.values", "actor_train.log_probs"]
        into += ["reference.log_probs", "critic.values", "actor_train.log_probs"]
        update.append("critic.update")
    elif _has(case, "reference"):
        reads.append("reference.log_probs")
    edges = ["data.train -> actor_infer.generate", f"{source} -> {', '.join(reads)}"]
    if case.draws > 1:
        edges.append("reward.score -> informative.select")
        into = ["informative.select", *into]
    edges.append(f"{', '.join(into)} -> advantage.estimate")
    if case.algorithm == "grpo" and _has(case, "reference"):
        edges.append("reference.log_probs -> actor_train.update")
    return [*edges, f"advantage.estimate -> {', '.join(update)}", "actor_train => actor_infer"]


def _generating(case: Case) -> dict[str, Any]:
    said: dict[str, Any] = {"weights_dtype": "fp8"} if "fp8 gen" in case.record.dtype else {}
    if case.record.engine in IN_PLACE and case.rollout_backend in ENGINES:
        said["sleep_level"] = 2
    if case.at_once is not None:
        said["max_sequences"] = case.at_once
    if case.eager or case.record.engine in MODULES_OF_TRAINER:
        said["cuda_graphs"] = False
    return said


def _engine(case: Case) -> dict[str, Any]:
    said: dict[str, Any] = {"recompute": "full", "packing": case.packed}
    if case.record.shard_devices and case.train_backend == "fsdp":
        said["shard_devices"] = case.record.shard_devices
    if case.host_optimizer:
        said["optimizer_offload"] = 1.0
    if case.resident:
        said["offload"] = False
    if case.record.engine in HALF_GRADIENTS and case.train_backend == "megatron":
        said["gradient_dtype"] = "bfloat16"
    if "fp8 train" in case.record.dtype:
        said["compute_dtype"] = "fp8"
    return {key: value for key, value in said.items() if key in EngineDocument.model_fields}


def _pools(case: Case, layouts: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for pool in case.pools:
        entry: dict[str, Any] = {"gpus": pool.gpus, "roles": list(pool.roles)}
        if layouts:
            given = {role: layout for role in pool.roles if (layout := _layout(case, role, pool.gpus))}
            if given:
                entry["layouts"] = given
        found[pool.name] = entry
    return found


def _layout(case: Case, role: str, gpus: int) -> dict[str, int]:
    """As said, on the axes that the backend has and as far as they divide the pool; frozen models are cut as the actor
    is."""
    said = case.rollout if role == "actor_infer" else case.train
    backend = case.rollout_backend if role == "actor_infer" else case.train_backend
    legal = TRAITS[backend].axes
    found = {axis: size for axis in AXES if (size := said.get(axis, 1)) > 1 and axis in legal}
    for axis in ("cp", "pp", "tp"):
        while axis in found and gpus % _product(found):
            found[axis] //= 2
            if found[axis] < 2:
                del found[axis]
    if found or any(axis in said for axis in ("tp", "pp", "cp")):
        return found or {"tp": 1}
    return {}


def _product(layout: dict[str, int]) -> int:
    return layout.get("tp", 1) * layout.get("pp", 1) * layout.get("cp", 1)
