"""Rows of perf_published.json about memory alone (feasible or not) → Jobs. Takes records; knows no planner.

They say a model, a card and a number of devices, rarely more. What a planner needs besides is filled by printed rules:
roles by the algorithm, 1,024 + 1,024 tokens, one longest sequence a micro-batch and a prompt a device, recomputation.
A row that is said to be feasible is a minimum found with offload, so offload is on; one that is not is a framework's
default, which keeps state on its devices.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from benchmarks.facts.jobs import Job, Party, UnreadableError, generation_of, whole
from benchmarks.facts.peers import card_in
from benchmarks.facts.reports import LENGTH_RULE

HOPPER = ("H100-80G", "rule: a Hopper card without a name is an H100-80G")
CARD_RULE = ("H100-80G", "rule: a row without a card is of 80 GB")
SHARE = 0.5
"""Of an engine beside trainers (verl's gpu_memory_utilization)."""
LORA_RANK = 32
OFFLOAD: Mapping[str, Any] = {"parameter_offload": True, "optimizer_offload": 1.0}


def job_of_row(record: Mapping[str, Any]) -> Job:
    """Raises UnreadableError."""
    said = record.get("models")
    models = {str(part): str(name) for part, name in said.items()} if isinstance(said, Mapping) else {}
    actor = models.get("actor")
    if record.get("evidence") == "estimate_by_authors":
        raise UnreadableError("an estimate of its authors, no run")
    count = whole(record.get("num_gpus"))
    if not actor or not count:
        raise UnreadableError("no model or no number of devices")
    gpu, origin, filled = _card(record)
    feasible = record.get("kind") != "memory_infeasible"
    prompt, response = whole(record.get("prompt_len")), whole(record.get("response_len"))
    if not prompt or not response:
        prompt, response = LENGTH_RULE
        filled = (*filled, "lengths: {} + {}".format(*LENGTH_RULE))
    per_node = min(count, whole(record.get("gpus_per_node"), 8) or 8)
    prompts = max(count, whole(record.get("global_batch_prompts"), count) or count)
    prompts = -(-prompts // count) * count
    return Job(
        id=str(record["id"]),
        gpu=gpu,
        gpu_origin=origin,
        nodes=max(1, count // per_node),
        gpus_per_node=per_node,
        pools={"all": count},
        parties=tuple(_parties(record, models, prompt + response, feasible=feasible)),
        prompt_tokens=prompt,
        response_tokens=response,
        prompts=prompts,
        samples=1 if "critic" in models or "ppo" in _algorithm(record) else 5,
        generation=generation_of(str(record.get("rollout_backend"))),
        filled=(*filled, "one longest sequence a micro-batch"),
    )


def _card(record: Mapping[str, Any]) -> tuple[str, str, tuple[str, ...]]:
    said = str(record.get("gpu") or "")
    card = card_in(said)
    if card is not None:
        return card, "record", ()
    if "hopper" in said.lower():
        return *HOPPER, ("card",)
    if said:
        raise UnreadableError(f"`{said}` names no card of the catalogue")
    return *CARD_RULE, ("card",)


def _algorithm(record: Mapping[str, Any]) -> str:
    return str(record.get("algorithm") or "").lower()


def _backends(record: Mapping[str, Any]) -> tuple[str, str]:
    said = f"{record.get('system')} {record.get('train_backend')}".lower()
    if re.search(r"deepspeed|ds-?chat", said):
        return "deepspeed", "deepspeed"
    if re.search(r"megatron|nemo|slime|rlinf", said):
        return "megatron", "vllm"
    return "fsdp", "sglang" if "sglang" in str(record.get("rollout_backend")).lower() else "vllm"


def _parties(record: Mapping[str, Any], models: Mapping[str, str], longest: int, *, feasible: bool) -> list[Party]:
    train, rollout = _backends(record)
    actor = models["actor"]
    lora = LORA_RANK if "lora" in _algorithm(record) else None
    is_ppo = "critic" in models or "ppo" in _algorithm(record)
    common: dict[str, Any] = {"backend": train, "pool": "all", "forward_tokens": longest}
    state = {"offload": feasible} | (dict(OFFLOAD) if feasible and train == "deepspeed" else {})
    trains = {**common, "kind": "trainer", "update_tokens": longest, "engine": {"recompute": "full", **state}}
    frozen = {**common, "engine": {"offload": feasible} | ({"parameter_offload": True} if feasible else {})}
    found = [
        Party(name="actor_train", model=actor, lora_rank=lora, **trains),
        Party(
            name="actor_infer",
            kind="generator",
            backend=rollout,
            model=actor,
            pool="all",
            lora_rank=lora,
            free=True,
            engine={} if rollout == "deepspeed" else {"kv_fraction": SHARE, "offload": True},
        ),
        Party(name="reference", kind="scorer", model=str(models.get("ref") or actor), **frozen),
    ]
    if is_ppo:
        critic = str(models.get("critic") or actor)
        critic = actor if re.fullmatch(r"[\d.]+B.*", critic) else critic
        found.append(Party(name="critic", model=critic, **trains))
        if "reward" in models or train == "deepspeed":
            found.append(Party(name="reward", kind="reward", model=str(models.get("reward") or critic), **frozen))
    return found
