"""The section of training micro-batches: peak memory and time of one forward and backward, planned as a trainer whose
generator stands on devices of its own.

Takes Facts, gives a Section. A record is one micro-batch of one row of `seq_len` tokens on each dp rank. Its notes name
what is recomputed; RL computes its log-probs without keeping logits, supervised training keeps them.
"""

from __future__ import annotations

import re
from statistics import median
from typing import Any

from benchmarks.facts.cards import card_of
from benchmarks.facts.flows import FOLDER, text_of
from benchmarks.facts.microbatch_memory import peak_bytes
from benchmarks.facts.records import Record, read
from benchmarks.facts.rules import UnusableError
from benchmarks.facts.section import Facts, Section, bar
from benchmarks.facts.trainer import NotPlannedError
from flowrl.api.compile import compile_spec
from flowrl.diag.diagnostic import FlowError
from flowrl.plan.plan import StagePlan
from flowrl.spec.blocks import EngineDocument
from flowrl.spec.pipeline import loads

GIB = 2**30
MEMORY = 0.10
PROMPT = 2
"""Tokens of a row's prompt: all others are its response."""


def rows(facts: Facts) -> Section:
    """The section."""
    table: list[dict[str, Any]] = []
    excluded: list[dict[str, str]] = []
    for raw in facts.perf:
        record = read(raw)
        if record.kind != "train_microbatch":
            continue
        try:
            table.append(_row(record))
        except UnusableError as reason:
            excluded.append({"id": record.id, "reason": str(reason)})
    return Section("training micro-batches", table, excluded, _summary(table))


def _summary(table: list[dict[str, Any]]) -> dict[str, Any]:
    memory, times = ([row for row in table if row.get(key) is not None] for key in ("memory error", "time error"))
    worst = max((abs(row["memory error"]) for row in memory), default=None)
    return {
        "rows": len(table),
        "peak memory: median |error|": bar(_median(memory, "memory error"), MEMORY),
        "peak memory: largest |error|": worst,
        "time: median |error|": _median(times, "time error"),
    }


def _median(table: list[dict[str, Any]], key: str) -> float | None:
    return median(abs(row[key]) for row in table) if table else None


def _row(record: Record) -> dict[str, Any]:
    stage = _planned(record)
    memory = _peak(record)
    update = next(seconds for id, seconds in stage.estimate.durations.items() if "update" in id)
    said, seconds = record.number("peak_gpu_mem_gib"), record.number("microbatch_step_time_s")
    return {
        "id": record.id.removeprefix("primerl-"),
        "GiB": said,
        "planned GiB": memory,
        "memory error": None if not said else memory / said - 1,
        "s": seconds,
        "planned s": update,
        "time error": None if not seconds else update / seconds - 1,
        "mfu": record.number("mfu"),
    }


def _peak(record: Record) -> float:
    """GiB of the trainer alone in its update: what the allocator of torch counts, without contexts and reserves."""
    try:
        return peak_bytes(record.raw) / GIB
    except NotPlannedError as error:
        raise UnusableError(str(error)) from None


def _planned(record: Record) -> StagePlan:
    try:
        plan = compile_spec(loads(text_of(_document(record)), folder=str(FOLDER)))
    except FlowError as error:
        found = error.diagnostics[0]
        raise UnusableError(f"{found.code} {found.headline}: {found.why or ''}") from None
    return plan.stages[0]


def _document(record: Record) -> dict[str, Any]:
    length, count = record.response.most or record.total.most, record.count
    model = card_of(record.models.get("actor", ""))
    if record.gpu is None or model is None or not length or not count:
        raise UnusableError("no device, model, length or number of devices that the catalogue knows")
    axes = {axis: size for axis, size in record.train.items() if size > 1}
    ranks = count // (axes.get("cp", 1) * axes.get("tp", 1))
    rank = re.search(r"LoRA\(r=(\d+)\)", record.algorithm)
    policy: dict[str, Any] = {"source": model}
    if rank:
        policy["lora"] = {"rank": int(rank[1]), "alpha": 2 * int(rank[1])}
    supervised = record.algorithm.upper().startswith("SFT")
    pool: dict[str, Any] = {"gpus": count, "roles": ["actor_train"]}
    if axes:
        pool["layouts"] = {"actor_train": axes}
    roles = {
        "actor_train": {
            "model": "policy",
            "backend": "fsdp",
            "engine": _engine(record, supervised),
            "update": {"loss": "ppo", "old_log_probs": "none", "micro_batch_tokens": length},
        },
        "actor_infer": {"model": "policy", "backend": "hf", "generate": {"max_response_tokens": length - PROMPT}},
        "reward": {"kind": "reward", "function": "reward.py:score"},
        "advantage": {"estimator": "reinforce"},
    }
    return {
        "flowrl": 1,
        "name": "microbatch",
        "cluster": {"gpu": record.gpu, "nodes": 2, "gpus_per_node": count},
        "models": {"policy": policy},
        "data": {"train": {"source": "t.jsonl", "prompt": "prompt", "max_prompt_tokens": PROMPT}},
        "roles": roles,
        "edges": [
            "data.train -> actor_infer.generate",
            "actor_infer.generate -> reward.score",
            "reward.score -> advantage.estimate",
            "advantage.estimate -> actor_train.update",
            "actor_train => actor_infer",
        ],
        "step": {"prompts": ranks, "samples_per_prompt": 1, "updates": 1},
        "assume": {"actor_infer.generate": {"response_tokens": length - PROMPT}},
        "placement": {"pools": {"train": pool, "rollout": {"gpus": 1, "roles": ["actor_infer"]}}},
        "run": {"steps": 10},
    }


def _engine(record: Record, supervised: bool) -> dict[str, Any]:
    """prime-rl: FSDP2 with float32 masters, of frozen weights too; its language-model head in chunks for RL."""
    said = re.search(r"activation ckpt (\w+)", record.notes)
    kept = (said[1] if said else "none").lower()
    if kept == "offload" and "activation_offload" not in EngineDocument.model_fields:
        raise UnusableError("activations are offloaded to the host, which the language has no key for")
    found: dict[str, Any] = {"recompute": "none" if kept in ("none", "off", "no") else "full", "packing": True}
    found["master_dtype"] = "float32"
    if kept == "offload":
        found["activation_offload"] = True
    found["cross_entropy"] = "whole" if supervised else "chunked"
    return found
