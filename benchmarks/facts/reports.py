"""Bug reports of memory that ran out, and published rows of memory → Jobs. Takes records; knows no planner.

A report says what its author wrote: some of cards, nodes, model, lengths, batches and flags, under each framework's own
names. What it says is read by name; what it does not is the framework's default (colocated roles, 0.5 or 0.9 for the
engine). A report without card, model and lengths is no test of a planner: it is read with rules and told apart.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.facts.jobs import (
    Cut,
    Job,
    Party,
    UnreadableError,
    generation_of,
    packed_tokens,
    passes_of,
    share,
    truth,
    whole,
)
from benchmarks.facts.peers import card_in, job_of

LENGTH_RULE = (1024, 1024)
CARD_RULE = "H100-80G"
MODEL_OF_SIZE: tuple[tuple[float, str], ...] = (
    (0.5, "Qwen2.5-0.5B"),
    (1.5, "Qwen2.5-1.5B"),
    (3, "Qwen2.5-3B"),
    (7, "Qwen2.5-7B"),
    (8, "Llama-3.1-8B"),
    (13, "Llama-2-13b-hf"),
    (14, "Qwen2.5-14B"),
    (32, "Qwen2.5-32B"),
    (70, "Llama-3.1-70B"),
    (72, "Qwen2.5-72B"),
)
"""Rule: the model of a report that says only its size."""
FEWEST_WORDS = 3
"""Of a name that a report gives a configuration: `ppo_math_1B` has three."""
FRAMEWORKS = ("verl", "nemo", "openrlhf", "slime", "areal", "roll", "trl", "trinity", "prime", "skyrl")
MEMORY_KINDS = re.compile(r"^oom|^host_ram")


@dataclass(frozen=True, slots=True)
class Reported:
    job: Job
    filled: tuple[str, ...]
    """What the report did not say of card, model and lengths, and a rule did."""

    @property
    def has_facts(self) -> bool:
        return not self.filled


def report_of(record: Mapping[str, Any], configs: Sequence[Mapping[str, Any]]) -> Reported:
    """The job of a report. `configs` are those published, which a report may name. Raises UnreadableError."""
    facts = record.get("facts")
    if not isinstance(facts, Mapping) or not facts:
        raise UnreadableError("the report states no facts")
    named = _named_config(facts, configs)
    if named is not None:
        return Reported(named, ())
    try:
        return _Report(record, facts).reported()
    except (KeyError, ValueError, TypeError, IndexError, ZeroDivisionError, AttributeError) as error:
        raise UnreadableError(f"facts of a form that is not known: {type(error).__name__}: {error}") from None


def _named_config(facts: Mapping[str, Any], configs: Sequence[Mapping[str, Any]]) -> Job | None:
    """A report on a configuration that its framework ships, by file name."""
    said = _words(str(first(facts, "config|script|recipe") or ""))
    for record in configs:
        file = _words(str(record.get("source_path", "")).rsplit("/", 1)[-1])
        if len(said) >= FEWEST_WORDS and said <= file:
            return job_of(record)
    return None


def _words(name: str) -> frozenset[str]:
    return frozenset(re.findall(r"[a-z0-9.]+", re.sub(r"\.(ya?ml|sh|py)$", "", name.lower())))


def first(facts: Mapping[str, Any], *patterns: str) -> Any:
    """The value of the first fact whose whole name matches one of the patterns, in their order."""
    for pattern in patterns:
        for key, value in facts.items():
            if re.fullmatch(pattern, str(key), flags=re.IGNORECASE) and value is not None:
                return value[0] if isinstance(value, list) and value else value
    return None


class _Report:
    """One report, read."""

    def __init__(self, record: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        self.record, self.facts = record, facts
        self.filled: list[str] = []
        repo = str(record.get("repo") or record.get("id")).lower()
        self.framework = next((name for name in FRAMEWORKS if name in repo), "")

    def reported(self) -> Reported:
        self.model = self._model()
        gpu = self._card()
        nodes, per_node = self._devices()
        self.prompt, self.response = self._lengths()
        pools, homes = self._pools(nodes, per_node)
        prompts = whole(first(self.facts, r"(ppo_)?train_batch(_size)?", r"rollout_batch(_size)?", "prompts"), 128)
        samples = max(
            1, whole(first(self.facts, r"n|(n|num)_(samples|generations)(_per_prompt)?|group_size|rollout_n"), 1)
        )
        small = whole(first(self.facts, r"(ppo_)?mini_batch_size"))
        parties = self._parties(pools, homes)
        every = sum(pools.values())
        job = Job(
            id=str(self.record["id"]),
            gpu=gpu,
            gpu_origin="record",
            nodes=max(nodes, -(-every // per_node)),
            gpus_per_node=per_node,
            pools=pools,
            parties=tuple(parties),
            prompt_tokens=self.prompt,
            response_tokens=self.response,
            prompts=max(1, prompts),
            samples=samples,
            updates=passes_of(prompts, small, prompts) if small else 1,
            empties_cache=not self._grows(),
            generation=self._generation(),
            filled=tuple(self.filled),
        )
        return Reported(job, tuple(self.filled))

    def _model(self) -> str:
        said = first(self.facts, r"(actor_|policy_)?model(_name)?|models|models_tried|actor|base(_model)?")
        size = share(first(self.facts, r"(model|params)_?b"), 0.0) or self._size_told()
        if isinstance(said, str):
            return said
        if size:
            return min(MODEL_OF_SIZE, key=lambda each: abs(each[0] - size))[1]
        raise UnreadableError("no model")

    def _generation(self) -> str | None:
        """Of vLLM: as a version says, or the one that woke weights and cache together if the report tells of that."""
        told = " ".join(f"{key} {value}" for key, value in self.facts.items())
        told = f"{told} {self.record.get('symptom')} {self.record.get('cause')}"
        said = generation_of(told)
        is_sync = str(self.record.get("kind")) == "oom_weight_sync"
        together = re.search(r"together|coexist|not staged|before .* released", told.lower())
        return "v0" if said is None and is_sync and together else said

    def _grows(self) -> bool:
        """Whether the report tells of reserved memory that a trainer does not give back."""
        told = f"{self.record.get('symptom')} {self.record.get('cause')}".lower()
        return bool(re.search(r"allocator|reserved|never released|fragment", told))

    def _size_told(self) -> float:
        """Billions that the title names (`70B GRPO OOM on 9 nodes`), if it names one size."""
        sizes = set(re.findall(r"(?<![\d.])(\d+(?:\.\d+)?)B\b", str(self.record.get("symptom"))))
        return float(sizes.pop()) if len(sizes) == 1 else 0.0

    def _card(self) -> str:
        texts = [str(first(self.facts, "gpus", "gpu", r"gpu_.*", "device.*", "hardware") or "")]
        texts += [str(value) for key, value in self.facts.items() if "gpu" in str(key).lower()]
        for text in texts:
            card = card_in(text)
            if card is not None:
                return card
        gib = whole(first(self.facts, r"gpu_(GB|GiB|memory.*)"))
        if 70 <= gib <= 81:
            return CARD_RULE
        self.filled.append(f"card: {CARD_RULE}")
        return CARD_RULE

    def _devices(self) -> tuple[int, int]:
        """Nodes, and devices of one."""
        nodes = whole(first(self.facts, r"(n_?)?nodes|num_nodes|nnodes"), 0)
        text = str(first(self.facts, "gpus", "gpu", "num_gpus") or "")
        said = re.match(r"\s*(\d+)\s*(?:[x×*]|$|gpu)", text, flags=re.IGNORECASE)
        count = int(said[1]) if said else whole(first(self.facts, "gpus_per_node", "n_gpus_per_node"), 0)
        per_node = whole(first(self.facts, "gpus_per_node", "n_gpus_per_node"), 0)
        if not count:
            self.filled.append("devices: a node of 8")
            count = 8
        if nodes and (per_node or "per node" in text or count <= 8):
            return nodes, per_node or count
        if count > 8 and count % 8 == 0:
            return count // 8, 8
        return 1, count

    def _lengths(self) -> tuple[int, int]:
        total = whole(
            first(
                self.facts, r"max_total_sequence_length|seq(uence)?_len(gth)?|(train_)?(context|ctx)(_length)?|max_len"
            )
        )
        prompt = whole(first(self.facts, r"(max_)?prompt(_max)?(_len(gth)?)?(_tokens)?|max_input.*"))
        response = whole(
            first(
                self.facts,
                r"(max_)?(response|completion)(_len(gth)?)?(_tokens)?|gen(erate)?(_max)?(_len(gth)?)?|max_new_tokens",
            )
        )
        if prompt and response:
            return prompt, response
        if response:
            return min(LENGTH_RULE[0], max(1, response // 2)), response
        if total:
            return min(LENGTH_RULE[0], total // 2), total - min(LENGTH_RULE[0], total // 2)
        self.filled.append("lengths: {} + {}".format(*LENGTH_RULE))
        return LENGTH_RULE

    def _pools(self, nodes: int, per_node: int) -> tuple[dict[str, int], dict[str, str]]:
        """OpenRLHF's counts of nodes for each role are pools of their own; else all roles share."""
        counted = {
            name: whole(first(self.facts, rf"{key}_(num_)?nodes")) * per_node
            for name, key in (
                ("actor_train", "actor"),
                ("reference", "ref"),
                ("critic", "critic"),
                ("reward", "reward"),
            )
        }
        engines = whole(first(self.facts, r"vllm_(num_)?engines")) * whole(first(self.facts, r"vllm_tp"), 1)
        if counted["actor_train"] and engines:
            pools = {name: size for name, size in counted.items() if size} | {"rollout": engines}
            return pools, {name: name for name in counted if counted[name]} | {"actor_infer": "rollout"}
        train = whole(first(self.facts, r"train(er)?_gpus"))
        roll = whole(first(self.facts, r"(rollout|gen\w*)_gpus"))
        if train and roll:
            return {"train": train, "rollout": roll}, {"actor_infer": "rollout", "": "train"}
        return {"all": nodes * per_node}, {"": "all"}

    def _parties(self, pools: Mapping[str, int], homes: Mapping[str, str]) -> list[Party]:
        def home(name: str) -> str:
            return homes.get(name) or homes.get("") or next(iter(pools))

        is_ppo = "ppo" in self._algorithm() or "value" in self._roles()
        actor = self._trainer("actor_train", home("actor_train"))
        parties = [actor, self._generator(home("actor_infer"), alone=len(pools) > 1)]
        if is_ppo:
            parties.append(self._trainer("critic", home("critic")))
        if is_ppo or "grpo" in self._algorithm() or "reference" in homes:
            parties.append(self._frozen("reference", "scorer", home("reference"), actor))
        if is_ppo and self.framework == "openrlhf":
            parties.append(self._frozen("reward", "reward", home("reward"), actor))
        return parties

    def _roles(self) -> str:
        return str(self.facts.get("roles") or "").lower()

    def _algorithm(self) -> str:
        said = str(first(self.facts, "algo(rithm)?") or "")
        return (said or f"{self.record.get('symptom', '')} {self.facts.get('config', '')}").lower()

    def _backend(self) -> str:
        said = str(first(self.facts, r"train(_backend)?|strategy|trainer|train_engine") or "").lower()
        if "megatron" in said or (not said and self.framework == "slime"):
            return "megatron"
        if "zero_stage" in self.facts or "deepspeed" in said or self.framework in ("openrlhf", "trl"):
            return "deepspeed"
        return "megatron" if whole(self.facts.get("ep")) > 1 or whole(self.facts.get("pp")) > 1 else "fsdp"

    def _cut(self) -> Cut:
        tp = whole(first(self.facts, r"(train_|actor_|dtensor_|megatron_)?tp(_size)?"), 1)
        cp = whole(first(self.facts, r"cp|ulysses_sp|sp(_size)?|ring_attn_size"), 1)
        return Cut(
            tp=max(1, tp),
            pp=max(1, whole(self.facts.get("pp"), 1)),
            cp=max(1, cp),
            ep=max(1, whole(self.facts.get("ep"), 1)),
        )

    def _tokens(self, *patterns: str) -> int:
        budget = whole(first(self.facts, r"(ppo_)?max_token(s|_len)_per_gpu|max_tokens_per_mb"))
        if budget:
            return budget
        count = whole(first(self.facts, *patterns, r"micro(_batch(_size)?)?(_per_gpu)?|per_device"), 1)
        if self._is_packed():
            return packed_tokens(max(1, count), self.model, self.prompt, self.response)
        return max(1, count) * (self.prompt + self.response)

    def _is_packed(self) -> bool:
        return truth(self.facts.get("packing")) or truth(self.facts.get("use_remove_padding"))

    def _trainer(self, name: str, pool: str) -> Party:
        backend = self._backend()
        off = truth(first(self.facts, r"optimizer_offload")) or truth(first(self.facts, r"param_offload"))
        engine: dict[str, Any] = {"recompute": self._recompute()}
        engine |= {"offload": off} if self.framework == "verl" else {}
        if backend == "deepspeed":
            engine |= {"zero_stage": whole(self.facts.get("zero_stage"), 3), "offload": truth(self.facts.get("sleep"))}
            engine |= {"optimizer_offload": 1.0} if truth(self.facts.get("adam_offload")) else {}
        if truth(self.facts.get("cpu_offload")):
            engine |= {"parameter_offload": True, "optimizer_offload": 1.0}
        if str(self.facts.get("strategy")).lower() == "fsdp2" and self.framework == "verl":
            engine["load"] = "broadcast"
        tokens = self._tokens(r"(ppo_)?micro(_train)?(_batch_size)?(_per_gpu)?")
        forward = self._tokens(r"micro_rollout(_batch_size)?", r".*log_?prob_(micro|batch).*")
        return Party(
            name=name,
            kind="trainer",
            backend=backend,
            model=self.model,
            pool=pool,
            cut=self._cut(),
            update_tokens=tokens,
            forward_tokens=forward,
            filled_tokens=self._is_packed(),
            lora_rank=whole(first(self.facts, r"lora(_rank)?")) or None,
            engine=engine,
        )

    def _recompute(self) -> str:
        said = first(self.facts, r".*checkpointing.*|recompute.*")
        return "none" if said is not None and not truth(said) and str(said) not in ("full", "selective") else "full"

    def _frozen(self, name: str, kind: str, pool: str, actor: Party) -> Party:
        engine = {key: actor.engine[key] for key in ("zero_stage", "offload") if key in actor.engine}
        return Party(
            name=name,
            kind=kind,
            backend=actor.backend,
            model=actor.model,
            pool=pool,
            cut=actor.cut,
            forward_tokens=actor.forward_tokens,
            engine=engine,
        )

    def _generator(self, pool: str, *, alone: bool) -> Party:
        tp = whole(first(self.facts, r"(rollout|vllm|gen\w*|infer)[_.](tp|tensor_model_parallel_size)(_size)?"), 0)
        backend = self._engine_backend()
        fraction = share(self._number(first(self.facts, r".*gpu_memory_utilization|util.*|mem_fraction.*")), 0.0)
        default = {"verl": 0.5, "nemo": 0.6, "trl": 0.9}.get(self.framework, 0.85)
        engine: dict[str, Any] = {"kv_fraction": fraction or default} if backend in ("vllm", "sglang") else {}
        sleeps = backend in ("vllm", "sglang") and self.framework not in ("trl",)
        engine |= {} if alone else {"offload": sleeps}
        return Party(
            name="actor_infer",
            kind="generator",
            backend=backend,
            model=self.model,
            pool=pool,
            cut=Cut(tp=tp or 1) if backend != "deepspeed" else Cut(),
            free=not tp and backend != "deepspeed",
            engine=engine,
        )

    def _engine_backend(self) -> str:
        said = str(first(self.facts, r"rollout|engine|rollout_backend") or "").lower()
        if "sglang" in said or (not said and self.framework in ("slime", "areal")):
            return "sglang"
        has_engines = any("vllm" in str(key) for key in self.facts) or "vllm" in said
        if self.framework == "openrlhf" and not has_engines:
            return "deepspeed"
        return "vllm"

    @staticmethod
    def _number(text: Any) -> Any:
        found = re.search(r"\d+(?:\.\d+)?", str(text)) if isinstance(text, str) else None
        return found[0] if found else text
