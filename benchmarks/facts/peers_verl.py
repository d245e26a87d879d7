"""verl's settings (Hydra keys of its PPO trainer at HEAD) → Job. Takes a record; knows no planner.

Defaults are those of verl/trainer/config at HEAD: gradient checkpointing on (model.enable_gradient_checkpointing;
for Megatron it means full granularity), engine asleep while others work (rollout.free_cache_engine), utilization 0.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.facts.jobs import Cut, Job, Party, UnreadableError, packed_tokens, passes_of, share, truth, whole

_ACTOR, _ROLLOUT, _REF = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout.", "actor_rollout_ref.ref."
_MODEL = "actor_rollout_ref.model."
DEFAULT_UTILIZATION = 0.5
DEFAULT_ROLLOUT_TP = 2
DEFAULT_SEQUENCES = 1024


class _Settings:
    """One record's settings with the sizes that several roles share."""

    def __init__(self, record: Mapping[str, Any]) -> None:
        self.of: Mapping[str, Any] = record["settings"]
        self.record = record
        self.prompt = whole(self.of.get("data.max_prompt_length"))
        self.response = whole(self.of.get("data.max_response_length"))
        if self.prompt <= 0 or self.response <= 0:
            raise UnreadableError("no prompt and response length")
        backend = str(record.get("train_backend") or self.of.get(f"{_ACTOR}strategy") or "fsdp")
        self.backend = "megatron" if "megatron" in backend else "fsdp"
        self.packed = truth(self.of.get(f"{_MODEL}use_remove_padding"), default=True)
        self.lora = whole(self.of.get(f"{_MODEL}lora_rank")) or None

    @property
    def cross_entropy(self) -> str:
        """flash-attn's, with inplace_backward, on logits in bfloat16 (workers/actor/dp_actor.py,
        utils/torch_functional.py: logprobs_from_logits); Megatron's vocabulary-parallel one keeps a float32 copy and
        writes the gradient over it (tensor_parallel/cross_entropy.py)."""
        return "in_place" if self.backend == "fsdp" else "kernel"

    @property
    def longest(self) -> int:
        return self.prompt + self.response

    def in_sequences(self, count: int, *, packed: bool) -> int:
        """Tokens of a micro-batch of so many sequences."""
        if not packed:
            return count * self.longest
        return packed_tokens(count, str(self.record["model"]), self.prompt, self.response)

    def micro_batch(
        self, prefix: str, name: str, budget: str, spread: int, ranks: int, *, packed: bool | None = None
    ) -> tuple[int | None, bool]:
        """Tokens of a replica's micro-batch, and whether they follow from lengths that the record does not say: a
        budget of tokens per device times the devices that share a sequence, or sequences per device, or sequences of
        all ranks."""
        packed = self.packed if packed is None else packed
        tokens = self.budget(prefix, budget)
        if tokens:
            return self.even(tokens * spread, ranks) if budget == "ppo" else (tokens * spread, False)
        each = whole(self.of.get(f"{prefix}{name}_per_gpu"))
        if each:
            return self.in_sequences(each, packed=packed), packed
        every = whole(self.of.get(f"{prefix}{name}"))
        return (self.in_sequences(max(1, every // max(1, ranks)), packed=packed), packed) if every else (None, False)

    def budget(self, prefix: str, budget: str) -> int:
        """Tokens of a dynamic micro-batch on a device; 0 where micro-batches are of sequences."""
        dynamic = truth(
            self.of.get(f"{prefix}{budget}_use_dynamic_bsz"), truth(self.of.get(f"{_ACTOR}use_dynamic_bsz"))
        )
        return whole(self.of.get(f"{prefix}{budget}_max_token_len_per_gpu")) if dynamic else 0

    def even(self, budget: int, ranks: int) -> tuple[int, bool]:
        """Dynamic micro-batches are even: as many as the budget asks for, of the same size (utils/seqlen_balancing.py,
        rearrange_micro_batches), and none has more than its minibatch."""
        small = whole(self.of.get(f"{_ACTOR}ppo_mini_batch_size")) * max(1, whole(self.of.get(f"{_ROLLOUT}n"), 1))
        rows = max(1, small // max(1, ranks))
        every = rows * self.longest
        even = min(budget, max(self.longest, -(-every // -(-every // budget))))
        expected = packed_tokens(rows, str(self.record["model"]), self.prompt, self.response)
        return min(even, expected), expected < even


def job(record: Mapping[str, Any], gpu: tuple[str, str]) -> Job:
    """Raises UnreadableError."""
    read = _Settings(record)
    pools, homes, per_node, nodes = _pools(read)
    actor = _actor(read, homes["actor"], pools)
    parties = [actor, _rollout(read, homes["rollout"], pools)]
    if _has_critic(read):
        parties.append(_critic(read, homes["critic"], pools))
    if _has_reference(read):
        parties.append(_reference(read, actor, pools))
    if truth(read.of.get("reward_model.enable")):
        parties.append(_reward(read, homes["critic"], pools))
    samples = max(1, whole(read.of.get(f"{_ROLLOUT}n"), 1))
    small = whole(read.of.get(f"{_ACTOR}ppo_mini_batch_size"), 1) or 1
    batches = max(1, whole(read.of.get("async_training.require_batches"), 1))
    prompts = whole(read.of.get("data.train_batch_size")) or small * batches
    is_async = "actor_rollout_ref.hybrid_engine" in read.of and not truth(read.of["actor_rollout_ref.hybrid_engine"])
    return Job(
        id=str(record["id"]),
        gpu=gpu[0],
        gpu_origin=gpu[1],
        nodes=nodes,
        gpus_per_node=per_node,
        pools=pools,
        parties=tuple(parties),
        prompt_tokens=read.prompt,
        response_tokens=read.response,
        prompts=prompts,
        samples=samples,
        updates=passes_of(prompts, small, prompts),
        max_lag=1 if is_async else 0,
        share_of_free=True,
    )


def _pools(read: _Settings) -> tuple[dict[str, int], dict[str, str], int, int]:
    """Pools, the pool of each role, devices of a node and nodes."""
    per_node = whole(read.of.get("trainer.n_gpus_per_node"), whole(read.record.get("gpus_per_node"), 8))
    nodes = whole(read.of.get("trainer.nnodes"), whole(read.record.get("num_nodes"), 1))
    rollout = whole(read.of.get("rollout.nnodes")) * whole(read.of.get("rollout.n_gpus_per_node"))
    if rollout:
        homes = {"actor": "train", "rollout": "rollout", "critic": "train"}
        wide = max(per_node, whole(read.of.get("rollout.n_gpus_per_node")))
        wide = max(wide, whole(read.record.get("gpus_per_node")))
        trained = per_node * nodes
        return {"train": trained, "rollout": rollout}, homes, wide, -(-(trained + rollout) // wide)
    every = per_node * nodes
    if "half" in str(read.record.get("placement", "")):
        homes = {"actor": "actor", "rollout": "actor", "critic": "critic"}
        return {"actor": every // 2, "critic": every // 2}, homes, per_node, nodes
    return {"all": every}, {"actor": "all", "rollout": "all", "critic": "all"}, per_node, nodes


def _cut(read: _Settings, prefix: str, otherwise: Cut | None = None) -> Cut:
    if read.backend == "fsdp":
        given = read.of.get(f"{prefix}ulysses_sequence_parallel_size")
        return Cut(cp=whole(given, 1)) if given is not None else otherwise or Cut()
    keys = {axis: f"{prefix}megatron.{name}_parallel_size" for axis, name in _MEGATRON.items()}
    if otherwise is not None and not any(key in read.of for key in keys.values()):
        return otherwise
    return Cut(**{axis: max(1, whole(read.of.get(key), 1)) for axis, key in keys.items()})


_MEGATRON = {"tp": "tensor_model", "pp": "pipeline_model", "cp": "context", "ep": "expert_model"}


def _leaves(read: _Settings, prefix: str) -> bool:
    """Whether a trainer's state is on the host while others work: both its parts are (or Megatron's three)."""
    where = f"{prefix}megatron." if read.backend == "megatron" else f"{prefix}fsdp_config."
    return truth(read.of.get(f"{where}param_offload")) or truth(read.of.get(f"{where}optimizer_offload"))


def _trainer_engine(read: _Settings, prefix: str, devices: int, cut: Cut) -> dict[str, Any]:
    engine: dict[str, Any] = {"offload": _leaves(read, prefix), "packing": read.packed}
    model = f"{prefix}model." if prefix != _ACTOR else _MODEL
    engine["recompute"] = "full" if truth(read.of.get(f"{model}enable_gradient_checkpointing"), True) else "none"
    experts = whole(read.of.get(f"{prefix}megatron.expert_tensor_parallel_size"))
    if read.backend == "megatron" and cut.ep > 1 and experts:
        engine["expert_tensor_parallel"] = experts
    shard = whole(read.of.get(f"{prefix}fsdp_config.fsdp_size"), -1)
    if read.backend == "fsdp" and 0 < shard < devices:
        engine["shard_devices"] = shard
    if "fsdp2" in str(read.record.get("train_backend")):
        engine["load"] = "broadcast"
    if str(read.of.get(f"{prefix}fsdp_config.model_dtype")) in ("bfloat16", "bf16"):
        engine["master_dtype"] = "bfloat16"
    if truth(read.of.get(f"{prefix}fsdp_config.offload_policy")):
        engine |= {"parameter_offload": True, "optimizer_offload": 1.0}
    options = f"{prefix}optim.override_optimizer_config."
    if truth(read.of.get(f"{options}optimizer_cpu_offload")):
        engine["optimizer_offload"] = share(read.of.get(f"{options}optimizer_offload_fraction"), 1.0)
    engine["cross_entropy"] = "fused" if truth(read.of.get(f"{_MODEL}use_fused_kernels")) else read.cross_entropy
    return engine


def _actor(read: _Settings, pool: str, pools: Mapping[str, int]) -> Party:
    cut, devices = _cut(read, _ACTOR), pools[pool]
    spread, ranks = cut.cp, devices // cut.devices
    update, filled = read.micro_batch(_ACTOR, "ppo_micro_batch_size", "ppo", spread, ranks)
    forward, _ = read.micro_batch(_ROLLOUT, "log_prob_micro_batch_size", "log_prob", spread, ranks)
    return Party(
        name="actor_train",
        kind="trainer",
        backend=read.backend,
        model=str(read.record["model"]),
        pool=pool,
        cut=cut,
        update_tokens=update or read.longest,
        forward_tokens=forward or update or read.longest,
        filled_tokens=filled,
        lora_rank=read.lora,
        engine=_trainer_engine(read, _ACTOR, devices, cut),
    )


def _critic(read: _Settings, pool: str, pools: Mapping[str, int]) -> Party:
    cut, devices = _cut(read, "critic."), pools[pool]
    ranks = devices // cut.devices
    packed = truth(read.of.get("critic.model.use_remove_padding"), default=read.backend == "megatron")
    update, filled = read.micro_batch("critic.", "ppo_micro_batch_size", "ppo", cut.cp, ranks, packed=packed)
    forward, _ = read.micro_batch("critic.", "forward_micro_batch_size", "forward", cut.cp, ranks, packed=packed)
    engine = _trainer_engine(read, "critic.", devices, cut)
    offload = truth(read.of.get("critic.model.fsdp_config.param_offload"))
    return Party(
        name="critic",
        kind="trainer",
        backend=read.backend,
        model=str(read.of.get("critic.model.path") or read.record["model"]),
        pool=pool,
        cut=cut,
        update_tokens=update or read.longest,
        forward_tokens=forward or update or read.longest,
        filled_tokens=filled,
        engine=engine | {"offload": engine["offload"] or offload},
    )


def _reference(read: _Settings, actor: Party, pools: Mapping[str, int]) -> Party:
    cut = _cut(read, _REF, actor.cut)
    ranks = pools[actor.pool] // cut.devices
    forward, _ = read.micro_batch(_REF, "log_prob_micro_batch_size", "log_prob", cut.cp, ranks)
    streams = truth(read.of.get(f"{_REF}fsdp_config.param_offload"))
    leaves = streams or truth(read.of.get(f"{_REF}megatron.param_offload"))
    return Party(
        name="reference",
        kind="scorer",
        backend=read.backend,
        model=actor.model,
        pool=actor.pool,
        cut=cut,
        forward_tokens=forward or actor.forward_tokens,
        filled_tokens=actor.filled_tokens,
        lora_rank=read.lora,
        engine={"offload": leaves, "cross_entropy": read.cross_entropy}
        | ({"parameter_offload": True} if streams else {}),
    )


def _reward(read: _Settings, pool: str, pools: Mapping[str, int]) -> Party:
    """A reward model on FSDP; verl shards it over all ranks."""
    cut = _cut(read, "reward_model.")
    ranks = pools[pool] // cut.devices
    forward, _ = read.micro_batch("reward_model.", "micro_batch_size", "forward", cut.cp, ranks)
    leaves = truth(read.of.get("reward_model.model.fsdp_config.param_offload"))
    return Party(
        name="reward",
        kind="reward",
        backend=read.backend,
        model=str(read.of.get("reward_model.model.path") or read.record["model"]),
        pool=pool,
        cut=cut,
        forward_tokens=forward or read.longest,
        filled_tokens=read.packed,
        engine={"offload": leaves} | ({"parameter_offload": True} if leaves and read.backend == "fsdp" else {}),
    )


def _rollout(read: _Settings, pool: str, pools: Mapping[str, int]) -> Party:
    tp = whole(read.of.get(f"{_ROLLOUT}tensor_model_parallel_size"), DEFAULT_ROLLOUT_TP)
    engine: dict[str, Any] = {
        "kv_fraction": share(read.of.get(f"{_ROLLOUT}gpu_memory_utilization"), DEFAULT_UTILIZATION),
        "offload": truth(read.of.get(f"{_ROLLOUT}free_cache_engine"), True),
        "max_sequences": whole(read.of.get(f"{_ROLLOUT}max_num_seqs"), DEFAULT_SEQUENCES),
    }
    batch = whole(read.of.get(f"{_ROLLOUT}max_num_batched_tokens"))
    context = whole(read.of.get(f"{_ROLLOUT}max_model_len"))
    engine |= {"max_batch_tokens": batch} if batch else {}
    engine |= {"max_model_tokens": context} if context else {}
    eager = read.of.get(f"{_ROLLOUT}enforce_eager")
    engine |= {"cuda_graphs": not truth(eager)} if eager is not None else {}
    backend = str(read.of.get(f"{_ROLLOUT}name") or read.record.get("rollout_backend") or "vllm")
    return Party(
        name="actor_infer",
        kind="generator",
        backend="sglang" if backend.startswith("sglang") else "vllm",
        model=str(read.record["model"]),
        pool=pool,
        cut=Cut(tp=min(tp, pools[pool])),
        lora_rank=read.lora,
        engine=engine,
    )


def _has_critic(read: _Settings) -> bool:
    return any(key.startswith("critic.") and key != "critic.strategy" for key in read.of)


def _has_reference(read: _Settings) -> bool:
    return truth(read.of.get(f"{_ACTOR}use_kl_loss")) or truth(read.of.get("algorithm.use_kl_in_reward"))
