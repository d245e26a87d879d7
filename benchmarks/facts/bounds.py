"""What a Job needs at least on one device, in plain arithmetic of its own: no formula of FlowRL's cost model is used.

A bound counts only what no framework can leave out, so a flow whose bound is over the memory of a card does not run
there. Parameters are the billions that a record counts, less 2 %, or of a model's name, less a tenth.

Sources: 16 bytes a parameter of mixed-precision Adam are Rajbhandari et al. 2020 (arXiv:1910.02054, section 3.1: 2 + 2
weights and gradients, 12 states), cut over all devices at best, and Megatron's gradients are float32 unless said
otherwise (accumulate_allreduce_grads_in_fp32); an engine's weights are 2 bytes a parameter over its
devices and have to fit in its share; the loss reads one logit of 2 bytes a token and word of the vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from benchmarks.facts.jobs import GIB, Job, Party
from flowrl.machine.devices import DEVICE_CARDS

ROUNDED = 0.9
"""A model's name may say up to a ninth more than it has (`7B` of 6.7)."""
COUNTED = 0.98
"""A record's count is rounded to a digit or two."""
SMALLEST_COUNTED = 20
"""Billions from which a record's count is taken at its word."""
VOCABULARIES = (
    ("gemma", 256_000),
    ("gpt-oss", 201_000),
    ("kimi", 163_000),
    ("qwen", 151_000),
    ("glm", 151_000),
    ("llama-?3", 128_000),
    ("deepseek-(?:v3|r1|v2)", 102_000),
    ("deepseek", 100_000),
)
SMALLEST_VOCABULARY = 32_000
LOGIT_BYTES = 2
"""A logit in bfloat16, once."""
CARDS = ("H200", "H20", "A100-80G", "L40S", "A100-40G", "RTX4090")
"""Tried as smaller cards, the largest first: each computes in bfloat16."""


def billions(model: str, otherwise: float | None = None) -> float | None:
    """Parameters that a name says: `Qwen3-30B-A3B` has 30, `Llama-3-8b-sft` 8; `otherwise` if it says none."""
    found = re.findall(r"(?<![A-Za-z\d.])(\d+(?:\.\d+)?)\s*[bB](?![A-Za-z])", model.rsplit("/", 1)[-1])
    return float(found[0]) if found else otherwise


def vocabulary(model: str) -> int:
    """Words of a family's vocabulary, rounded down."""
    return next((size for name, size in VOCABULARIES if re.search(name, model.lower())), SMALLEST_VOCABULARY)


def least(job: Job, said: float | None = None) -> tuple[float, str]:
    """Bytes that the most burdened device holds at least at some moment, and how they come about. `said`: billions of
    the policy by its record."""
    moments = [*_moments(job, said)]
    return max(moments, default=(0.0, "nothing"))


def is_possible(job: Job, said: float | None = None) -> bool:
    """Whether states and weights leave room on the job's own card. Logits are left out: the tokens of a micro-batch may
    be filled by a rule."""
    memory = DEVICE_CARDS[job.gpu].device.memory_bytes
    bare = replace(job, parties=tuple(_without_logits(party) for party in job.parties))
    return least(bare, said)[0] <= memory and _engine_short(job, said, memory) is None


def _without_logits(party: Party) -> Party:
    return replace(party, engine={**party.engine, "cross_entropy": "fused"})


def smaller_card(job: Job, said: float | None = None) -> tuple[Job, str] | None:
    """The job on the largest card that certainly can't hold it; None if every card might."""
    for name in CARDS:
        memory = DEVICE_CARDS[name].device.memory_bytes if name in DEVICE_CARDS else 0
        if not memory:
            continue
        there = replace(job, gpu=name)
        need, how = least(there, said)
        if need > memory:
            return there, f"{how} = {need / GIB:.1f} GiB at least, {name} has {memory / GIB:.1f}"
        short = _engine_short(there, said, memory)
        if short is not None:
            return there, short
    return None


def larger_budget(job: Job, said: float | None = None) -> tuple[Job, str] | None:
    """The job with micro-batches (and a step) so large that their logits alone are over its card; None where the loss
    need not keep logits."""
    actor = job.party("actor_train")
    memory = DEVICE_CARDS[job.gpu].device.memory_bytes
    if actor is None or actor.engine.get("cross_entropy", "whole") in ("fused", "chunked") or not actor.update_tokens:
        return None
    devices = job.pools[actor.pool]
    replicas = max(1, devices // actor.cut.devices)
    for factor in (2**power for power in range(1, 13)):
        tokens = actor.update_tokens * factor
        logits = LOGIT_BYTES * tokens / actor.cut.cp * vocabulary(actor.model) / actor.cut.tp
        if logits > memory:
            rows = -(-tokens // job.longest) * replicas * job.updates
            prompts = max(job.prompts, -(-rows // job.samples // job.updates) * job.updates + job.updates)
            if prompts > MOST_PROMPTS:
                return None
            grown = replace(actor, update_tokens=tokens, filled_tokens=False)
            parties = tuple(grown if party is actor else party for party in job.parties)
            how = f"micro-batch x{factor}: logits of {tokens:,} tokens take {logits / GIB:.0f} GiB at least"
            return replace(job, parties=parties, prompts=prompts), how
    return None


MOST_PROMPTS = 1_000_000


def _moments(job: Job, said: float | None) -> Iterator[tuple[float, str]]:
    for pool in job.pools:
        here = job.of_pool(pool)
        stays = {party.name: _resident(job, party, said) for party in here if party.engine.get("offload") is False}
        for party in here:
            others = sum(held for name, held in stays.items() if name != party.name)
            own = _at_work(job, party, said)
            text = f"{party.name} at work {own / GIB:.1f}"
            yield own + others, text + (f" + resident {others / GIB:.1f}" if others else "")


def _parameters(job: Job, party: Party, said: float | None) -> float:
    actor = job.party("actor_train")
    is_policy = actor is not None and party.model == actor.model
    if is_policy and said is not None and said >= SMALLEST_COUNTED:
        return COUNTED * 1e9 * said
    return ROUNDED * 1e9 * (billions(party.model, said if is_policy else None) or 0.0)


def _state_bytes(party: Party) -> float:
    """Bytes a parameter of what a trainer keeps: weights, gradients, master weights and moments."""
    if party.lora_rank is not None:
        return 2.0
    if party.engine.get("master_dtype") == "bfloat16":
        return 8.0
    away = float(party.engine.get("optimizer_offload") or 0.0)
    in_float32 = party.backend == "megatron" and party.engine.get("gradient_dtype") != "bfloat16"
    return 2.0 + (4.0 if in_float32 else 2.0) + 12.0 * (1.0 - away)


def _at_work(job: Job, party: Party, said: float | None) -> float:
    devices, parameters = job.pools[party.pool], _parameters(job, party, said)
    if party.kind == "generator":
        return _engine_weights(party, parameters)
    if party.kind != "trainer":
        return 0.0 if party.engine.get("parameter_offload") else 2 * parameters / devices
    held = 0.0 if party.engine.get("parameter_offload") else _state_bytes(party) * parameters / devices
    return held + _logits(job, party)


def _resident(job: Job, party: Party, said: float | None) -> float:
    """Of a role that does not leave: gradients may be freed between updates."""
    devices, parameters = job.pools[party.pool], _parameters(job, party, said)
    if party.kind == "generator":
        return _engine_weights(party, parameters)
    if party.engine.get("parameter_offload"):
        return 0.0
    kept = _state_bytes(party) - 2.0 if party.kind == "trainer" and party.lora_rank is None else 2.0
    return kept * parameters / devices


def _logits(job: Job, party: Party) -> float:
    if party.name == "critic" or party.engine.get("cross_entropy", "whole") in ("fused", "chunked"):
        return 0.0
    rows = job.prompts * job.samples // max(1, job.updates) // max(1, job.pools[party.pool] // party.cut.devices)
    said = job.longest if party.filled_tokens else party.update_tokens or job.longest
    tokens = min(said, max(1, rows) * job.longest)
    return LOGIT_BYTES * tokens / party.cut.cp * vocabulary(party.model) / party.cut.tp


def _engine_weights(party: Party, parameters: float) -> float:
    each = 1.0 if party.engine.get("weights_dtype") == "fp8" else 2.0
    return each * parameters / (max(party.cut.tp, party.cut.ep) * party.cut.pp)


def _engine_short(job: Job, said: float | None, memory: int) -> str | None:
    """Whether an engine's weights are over its share of the card."""
    for party in job.parties:
        if party.kind == "generator" and "kv_fraction" in party.engine:
            need = _engine_weights(party, _parameters(job, party, said))
            room = float(party.engine["kv_fraction"]) * memory
            if need > room:
                return f"{party.name}'s weights {need / GIB:.1f} GiB, its share of {job.gpu} is {room / GIB:.1f}"
    return None
