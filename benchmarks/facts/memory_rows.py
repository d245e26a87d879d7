"""Rows of perf_published.json about memory alone (feasible or not) → Jobs. Takes records; knows no planner.

They say a model, a card and a number of devices, rarely more. What a planner needs besides is filled by printed rules:
roles by the algorithm, 1,024 + 1,024 tokens, one longest sequence a micro-batch and a prompt a device, recomputation.
A row that is said to be feasible is a minimum found with offload, so offload is on; one that is not is a framework's
default, which keeps state on its devices (but for those on Megatron, which offload always).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from benchmarks.facts.jobs import Cut, Job, Party, UnreadableError, generation_of, whole
from benchmarks.facts.peers import card_in
from benchmarks.facts.records import Record, read
from benchmarks.facts.reports import LENGTH_RULE
from flowrl.machine.traits import TRAITS

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
    known = read(record)
    count = known.count
    if not actor or not count:
        raise UnreadableError("no model or no number of devices")
    gpu, origin, filled = _card(record)
    feasible = record.get("kind") != "memory_infeasible"
    prompt, response, rule = _lengths(known)
    filled = (*filled, *rule)
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
        parties=tuple(_parties(known, models, prompt + response, feasible=feasible)),
        prompt_tokens=prompt,
        response_tokens=response,
        prompts=prompts,
        samples=1 if "critic" in models or "ppo" in known.algorithm.lower() else 5,
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


def _lengths(known: Record) -> tuple[int, int, tuple[str, ...]]:
    """The most of prompts and of responses, and the rule that filled them."""
    total = known.total.most
    prompt = (
        known.prompt.most or round(known.prompt.mean or 0) or min(LENGTH_RULE[0], (total or 2 * LENGTH_RULE[0]) // 2)
    )
    response = known.response.most or round(known.response.mean or 0) or (total - prompt if total else 0)
    if response > 0:
        return prompt, response, ()
    return *LENGTH_RULE, ("lengths: {} + {}".format(*LENGTH_RULE),)


def _backends(known: Record) -> tuple[str, str]:
    said = f"{known.system} {known.train_backend}".lower()
    rollout = "sglang" if "sglang" in known.rollout_backend.lower() else "vllm"
    if re.search(r"deepspeed|ds-?chat", said):
        return "deepspeed", rollout if "vllm" in known.rollout_backend.lower() else "deepspeed"
    if "openrlhf" in said:
        return "deepspeed", rollout
    if re.search(r"megatron|nemo|slime|rlinf|roll\b|areal", said):
        return "megatron", rollout
    return "fsdp", rollout


def _legal(axes: Mapping[str, int], backend: str) -> Cut:
    return Cut(**{axis: size for axis, size in axes.items() if axis in TRAITS[backend].axes})


def _parties(known: Record, models: Mapping[str, str], longest: int, *, feasible: bool) -> list[Party]:
    train, rollout = _backends(known)
    actor = models["actor"]
    lora = LORA_RANK if "lora" in known.algorithm.lower() else None
    is_ppo = "critic" in models or "ppo" in known.algorithm.lower()
    leaves = feasible or train == "megatron"
    cut = _legal(known.train, train)
    common: dict[str, Any] = {"backend": train, "pool": "all", "forward_tokens": longest, "cut": cut}
    common["free"] = not known.train
    state = {"offload": leaves} | (dict(OFFLOAD) if feasible and train == "deepspeed" else {})
    trains = {**common, "kind": "trainer", "update_tokens": longest, "engine": {"recompute": "full", **state}}
    frozen = {**common, "engine": {"offload": leaves} | ({"parameter_offload": True} if feasible else {})}
    found = [
        Party(name="actor_train", model=actor, lora_rank=lora, **trains),
        Party(
            name="actor_infer",
            kind="generator",
            backend=rollout,
            model=actor,
            pool="all",
            lora_rank=lora,
            cut=_legal(known.rollout, rollout),
            free=not known.rollout,
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
