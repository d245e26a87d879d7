"""slime's settings (flags of its launch scripts, Megatron's and SGLang's names) → Job. Knows no planner.

With `colocate` the trainer leaves the devices while engines work and engines sleep while it trains; the reference's
weights lie on the host and are swapped in. Losses are Megatron's vocabulary-parallel cross-entropy.
`max-tokens-per-gpu` is multiplied by context parallelism.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from benchmarks.facts.jobs import Cut, Job, Party, UnreadableError, passes_of, share, truth, whole

PROMPT_RULE = 1024
"""slime's scripts set no prompt length; its data (dapo-math-17k, gsm8k) have short prompts."""
DEFAULT_FRACTION = 0.8
"""SGLang's mem_fraction_static is chosen from the device where it is not given; 0.8 is near to what it chooses."""
KEPT = ("sequence_parallel", "cross_entropy", "expert_tensor_parallel")
"""Keys of the trainer that its reference shares."""
IN_FP8 = re.compile(r"deepseek-?(v3|r1)|kimi-?k2(?!.*base)", re.IGNORECASE)
"""Models whose published weights are in fp8: slime quantises for engines as the checkpoint is (docs/en/examples/
deepseek-r1.md: "an fp8 format with 128x128 blockwise quantization for inference")."""
_MEGATRON = {
    "tp": "tensor-model-parallel-size",
    "pp": "pipeline-model-parallel-size",
    "cp": "context-parallel-size",
    "ep": "expert-model-parallel-size",
}


def job(record: Mapping[str, Any], gpu: tuple[str, str]) -> Job:
    """Raises UnreadableError."""
    of: Mapping[str, Any] = record["settings"]
    response = whole(of.get("rollout-max-response-len"))
    if response <= 0:
        raise UnreadableError("no rollout-max-response-len")
    per_node = whole(of.get("actor-num-gpus-per-node"), whole(record.get("gpus_per_node"), 8))
    trained = whole(of.get("actor-num-nodes"), 1) * per_node
    shared = truth(of.get("colocate"))
    rolled = trained if shared else whole(of.get("rollout-num-gpus"))
    if not rolled:
        raise UnreadableError("not colocated, and no rollout-num-gpus")
    pools = {"all": trained} if shared else {"train": trained, "rollout": rolled}
    home, away = ("all", "all") if shared else ("train", "rollout")
    trainer = _trainer(record, of, home, response, shares=shared)
    parties = [trainer, _generator(record, of, away, rolled, shares=shared)]
    if truth(of.get("use-kl-loss")) or share(of.get("kl-coef"), 0.0) > 0:
        parties.append(_reference(trainer))
    prompts = max(1, whole(of.get("rollout-batch-size"), 32))
    samples = max(1, whole(of.get("n-samples-per-prompt"), 1))
    small = whole(of.get("global-batch-size")) or prompts * samples // max(1, whole(of.get("num-steps-per-rollout"), 1))
    wide = max(per_node, whole(record.get("gpus_per_node"), per_node)) if sum(pools.values()) > per_node else per_node
    return Job(
        id=str(record["id"]),
        gpu=gpu[0],
        gpu_origin=gpu[1],
        nodes=-(-sum(pools.values()) // wide),
        gpus_per_node=wide,
        pools=pools,
        parties=tuple(parties),
        prompt_tokens=PROMPT_RULE,
        response_tokens=response,
        prompts=prompts,
        samples=samples,
        updates=passes_of(prompts * samples, small, prompts),
        max_lag=0 if shared else 1,
        filled=(f"prompt at most {PROMPT_RULE} tokens: slime's data",),
    )


def _trainer(record: Mapping[str, Any], of: Mapping[str, Any], pool: str, response: int, *, shares: bool) -> Party:
    cut = Cut(**{axis: max(1, whole(of.get(name), 1)) for axis, name in _MEGATRON.items()})
    granularity = str(of.get("recompute-granularity", "none"))
    engine: dict[str, Any] = {
        "recompute": granularity if granularity in ("full", "selective") else "none",
        "packing": True,
        "cross_entropy": "kernel",
    }
    if cut.tp > 1:
        engine["sequence_parallel"] = truth(of.get("sequence-parallel"))
    if cut.ep > 1:
        engine["expert_tensor_parallel"] = max(1, whole(of.get("expert-tensor-parallel-size"), 1))
    engine |= {"optimizer_offload": 1.0} if truth(of.get("optimizer-cpu-offload")) else {}
    engine |= {"offload": True} if shares else {}
    budget = whole(of.get("max-tokens-per-gpu")) * cut.cp
    count = max(1, whole(of.get("micro-batch-size"), 1))
    tokens = budget if truth(of.get("use-dynamic-batch-size")) and budget else count * (PROMPT_RULE + response)
    return Party(
        name="actor_train",
        kind="trainer",
        backend="fsdp" if "fsdp" in str(record.get("train_backend")).lower() else "megatron",
        model=str(record["model"]),
        pool=pool,
        cut=cut,
        update_tokens=tokens,
        forward_tokens=whole(of.get("log-probs-max-tokens-per-gpu")) * cut.cp or tokens,
        engine=engine,
    )


def _reference(trainer: Party) -> Party:
    kept = {key: trainer.engine[key] for key in KEPT if key in trainer.engine}
    return Party(
        name="reference",
        kind="scorer",
        backend=trainer.backend,
        model=trainer.model,
        pool=trainer.pool,
        cut=trainer.cut,
        forward_tokens=trainer.forward_tokens,
        engine={"offload": True, **kept},
    )


def _generator(record: Mapping[str, Any], of: Mapping[str, Any], pool: str, devices: int, *, shares: bool) -> Party:
    each = max(1, min(devices, whole(of.get("rollout-num-gpus-per-engine"), 1)))
    engine: dict[str, Any] = {"kv_fraction": share(of.get("sglang-mem-fraction-static"), DEFAULT_FRACTION)}
    engine |= {"offload": True} if shares else {}
    engine |= {"weights_dtype": "fp8"} if IN_FP8.search(str(record["model"])) else {}
    return Party(
        name="actor_infer",
        kind="generator",
        backend="sglang",
        model=str(record["model"]),
        pool=pool,
        cut=Cut(tp=each, ep=min(each, max(1, whole(of.get("sglang-ep-size"), 1)))),
        engine=engine,
    )
