"""AReaL's settings (keys of its yaml, allocation texts such as `fsdp:d4p1t1`) → Job. Takes a record; knows no planner.

Engines and trainers have devices of their own. A budget of tokens is that of a whole sequence, before context
parallelism cuts it. The prompts' length is not among the settings: a printed rule fills it. Of an agent, whose turns
have gconfig.max_new_tokens each, the response is the episode: gconfig.max_tokens less the prompt.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from benchmarks.facts.jobs import Cut, Job, Party, UnreadableError, passes_of, share, truth, whole

PROMPT_RULE = 1024
"""AReaL's examples take prompts of at most 1,024 tokens (train_dataset.max_length)."""
CROSS_ENTROPY = "kernel"
"""areal/utils/functional/vocab_parallel.py: a compiled log-softmax, or one whose gradient is written over it."""
_AXIS = re.compile(r"([dptce])(\d+)")


def job(record: Mapping[str, Any], gpu: tuple[str, str]) -> Job:
    """Raises UnreadableError."""
    of: Mapping[str, Any] = record["settings"]
    response = whole(of.get("gconfig.max_new_tokens"))
    if response <= 0:
        raise UnreadableError("no gconfig.max_new_tokens")
    context = whole(of.get("gconfig.max_tokens")) or None
    prompt = PROMPT_RULE
    if context:
        prompt = min(PROMPT_RULE, context // 2)
        response = context - prompt
    trained = str(of.get("actor.backend") or record.get("train_backend"))
    rolled = str(of.get("rollout.backend") or record.get("rollout_backend"))
    pools = {"train": _devices(trained), "rollout": _devices(rolled)}
    parties = [_trainer(record, of, "actor", "actor_train"), _generator(record, of, rolled)]
    if any(key.startswith("critic.") for key in of):
        parties.append(_trainer(record, of, "critic", "critic"))
    if share(of.get("actor.kl_ctl"), 0.0) > 0 and "ref.backend" in of:
        parties.append(_scorer(of, "ref", "train", str(record["model"])))
    if "teacher.backend" in of:
        pools["teacher"] = _devices(str(of["teacher.backend"]))
        parties.append(_scorer(of, "teacher", "teacher", str(of.get("teacher.path") or record["model"])))
    prompts = max(1, whole(of.get("train_dataset.batch_size"), 128))
    per_node = whole(of.get("cluster.n_gpus_per_node"), whole(record.get("gpus_per_node"), 8))
    nodes = whole(of.get("cluster.n_nodes"), whole(record.get("num_nodes"), 1))
    return Job(
        id=str(record["id"]),
        gpu=gpu[0],
        gpu_origin=gpu[1],
        nodes=max(nodes, -(-sum(pools.values()) // per_node)),
        gpus_per_node=per_node,
        pools=pools,
        parties=tuple(parties),
        prompt_tokens=prompt,
        response_tokens=response,
        prompts=prompts,
        samples=max(1, whole(of.get("gconfig.n_samples"), 1)),
        updates=passes_of(whole(of.get("actor.ppo_n_minibatches"), 1), 1, prompts),
        max_lag=whole(of.get("rollout.max_head_offpolicyness"), 0),
        filled=(f"prompt at most {prompt} tokens: AReaL's examples",),
    )


def _axes(text: str) -> dict[str, int]:
    """`megatron:(attn:d1p12t4|ffn:d1p12e4)`: attention's axes, and of the feed-forward e and t (as et)."""
    body = text.split(":", 1)[-1]
    parts = dict(re.findall(r"(attn|ffn):([^|)]*)", body)) or {"attn": body}
    axes = {axis: int(size) for axis, size in _AXIS.findall(parts.get("attn", ""))}
    experts = {axis: int(size) for axis, size in _AXIS.findall(parts.get("ffn", ""))}
    return axes | {name: experts[axis] for axis, name in (("e", "e"), ("t", "et")) if axis in experts}


def _devices(text: str) -> int:
    axes = _axes(text)
    count = axes.get("d", 1) * axes.get("p", 1) * axes.get("t", 1) * axes.get("c", 1)
    if not axes:
        raise UnreadableError(f"`{text}` is not an allocation")
    return count


def _cut(text: str) -> Cut:
    axes = _axes(text)
    return Cut(tp=axes.get("t", 1), pp=axes.get("p", 1), cp=axes.get("c", 1), ep=axes.get("e", 1))


def _backend(text: str) -> str:
    name = text.split(":", 1)[0].split("_")[0]
    return "fsdp" if name == "archon" else name


def _trainer(record: Mapping[str, Any], of: Mapping[str, Any], key: str, name: str) -> Party:
    text = str(of.get(f"{key}.backend") or of.get("actor.backend") or record.get("train_backend"))
    engine: dict[str, Any] = {
        "recompute": "full" if truth(of.get(f"{key}.gradient_checkpointing")) else "none",
        "packing": True,
        "cross_entropy": CROSS_ENTROPY,
    }
    if _backend(text) == "megatron" and _cut(text).ep > 1:
        engine["expert_tensor_parallel"] = _axes(text).get("et", 1)
    if truth(of.get(f"{key}.fsdp.offload_params")) or truth(of.get(f"{key}.archon.offload_params")):
        engine |= {"parameter_offload": True, "optimizer_offload": 1.0}
    if str(of.get(f"{key}.grad_reduce_dtype")) in ("bfloat16", "bf16"):
        engine["gradient_dtype"] = "bfloat16"
    tokens = whole(of.get(f"{key}.mb_spec.max_tokens_per_mb"), whole(of.get("actor.mb_spec.max_tokens_per_mb"), 16384))
    return Party(
        name=name,
        kind="trainer",
        backend=_backend(text),
        model=str(of.get(f"{key}.path") or record["model"]),
        pool="train",
        cut=_cut(text),
        update_tokens=tokens,
        forward_tokens=tokens,
        lora_rank=whole(of.get(f"{key}.lora_rank")) or None if truth(of.get(f"{key}.use_lora")) else None,
        engine=engine,
    )


def _scorer(of: Mapping[str, Any], key: str, pool: str, model: str) -> Party:
    text = str(of[f"{key}.backend"])
    return Party(
        name="reference" if key == "ref" else key,
        kind="scorer",
        backend=_backend(text),
        model=model,
        pool=pool,
        cut=_cut(text),
        forward_tokens=whole(of.get(f"{key}.mb_spec.max_tokens_per_mb"), 16384),
        engine={"cross_entropy": CROSS_ENTROPY},
    )


def _generator(record: Mapping[str, Any], of: Mapping[str, Any], text: str) -> Party:
    backend = _backend(text)
    if backend == "sglang":
        fraction, context = share(of.get("sglang.mem_fraction_static"), 0.88), of.get("sglang.context_length")
    else:
        fraction, context = share(of.get("vllm.gpu_memory_utilization"), 0.9), of.get("vllm.max_model_len")
    engine: dict[str, Any] = {"kv_fraction": fraction}
    engine |= {"max_model_tokens": whole(context)} if whole(context) else {}
    return Party(
        name="actor_infer",
        kind="generator",
        backend=backend,
        model=str(record["model"]),
        pool="rollout",
        cut=_cut(text),
        lora_rank=whole(of.get("actor.lora_rank")) or None if truth(of.get("rollout.use_lora")) else None,
        engine=engine,
    )
