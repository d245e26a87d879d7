"""What fills a record's gaps: one rule for all records, printed with the table. Takes a Record, gives a Case.

No rule knows a record; what differs between systems (which backend they train with) is in the table of SYSTEMS. A field
that a rule fills is named in `Case.filled`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import erf, exp, log, sqrt
from statistics import median

from benchmarks.facts.cards import card_of
from benchmarks.facts.pools import Pool, UnusableError, pools_of, roles_of
from benchmarks.facts.records import Record, noted, number
from flowrl.machine.traits import TRAITS

REASONING = re.compile(
    r"r1|distill|qwen3|qwq|think|\blrm\b|kimi|moonlight|glm-?[45]|gpt-?oss|deepseek-v4|minimax", re.IGNORECASE
)
"""Policies that write long chains of thought."""
NOT_REASONING = re.compile(r"instruct-2507|coder|-base", re.IGNORECASE)
TURNS = re.compile(r"multi-turn|tool|agent|search", re.IGNORECASE)
"""Algorithms whose responses are episodes of several turns."""
MEDIAN_TOKENS = {"reasoning": 7000.0, "turns": 2000.0, "other": 500.0}
SPREAD = {"reasoning": 1.4, "turns": 1.2, "other": 1.1}
PROMPT_TOKENS = 150.0
BATCHES = {"dapo": (512, 16), "grpo": (128, 8), "critic": (1024, 1), "other": (512, 16)}
"""Prompts a step and samples a prompt: the medians of the records that say them, by algorithm."""
UPDATES = 4
UPDATES_OF: Mapping[str, int] = {"hybridflow": 8}
"""Of systems whose publication says it once for all its runs: HybridFlow's section 8.1."""
MICRO_BATCH_TOKENS = 4096
MOST_OVER_MEAN = 4.0
LAG_OF_ASYNC = 1


@dataclass(frozen=True)
class Case:
    """A record with nothing missing."""

    record: Record
    gpu: str
    count: int
    per_node: int
    models: Mapping[str, str]
    """Part (actor, ref, critic, reward, cost) → card."""
    algorithm: str
    """ppo, grpo, remax or safe_rlhf."""
    prompts: int
    samples: int
    updates: int
    prompt_mean: float
    prompt_most: int
    response_mean: float
    response_most: int
    fixed: bool
    lag: int
    partial: bool
    old_log_probs: str
    train_backend: str
    rollout_backend: str
    train: Mapping[str, int]
    rollout: Mapping[str, int]
    pools: tuple[Pool, ...]
    filled: tuple[str, ...]
    resident: bool = False
    """Whether what trains stays on the devices while others work."""
    host_optimizer: bool = False
    at_once: int | None = None
    """Sequences that one engine decodes at once, if the notes say it."""
    packed: bool = True
    """Whether rows of different lengths share a micro-batch without padding."""
    draws: int = 1
    """Prompts generated for one that is trained on."""
    eager: bool = False
    """Whether engines decode without captured graphs."""

    @property
    def generation(self) -> Mapping[str, str]:
        """Of its backends, where it is not the current one."""
        told = re.search(r"vllm (\d+)\.(\d+)", self.record.rollout_backend, re.IGNORECASE)
        old = bool(told) and (int(told[1]), int(told[2])) < FIRST_QUICK_VLLM
        return {**GENERATIONS.get(self.record.engine, {}), **({"vllm": "v0"} if old else {})}

    @property
    def tokens(self) -> float:
        """Of a step, prompts and responses."""
        return self.prompts * self.samples * (self.prompt_mean + self.response_mean)

    @property
    def longest(self) -> int:
        return self.prompt_most + self.response_most


def mean_response(name: str, most: float, algorithm: str = "") -> float:
    """Expected tokens of a response of the policy `name` with a limit of `most`: a lognormal, cut at the limit."""
    kind = "turns" if TURNS.search(algorithm) else "reasoning" if reasons(name) else "other"
    middle, spread = log(MEDIAN_TOKENS[kind]), SPREAD[kind]
    z = (log(most) - middle) / spread
    return exp(middle + spread**2 / 2) * _normal(z - spread) + most * (1 - _normal(z))


def reasons(name: str) -> bool:
    """Whether a policy of that name writes long chains of thought."""
    bare = re.sub(r"\(.*?\)", "", name)
    return bool(REASONING.search(bare)) and not NOT_REASONING.search(bare)


def _normal(z: float) -> float:
    return 0.5 * (1 + erf(z / sqrt(2)))


IN_FLIGHT = ("nemo",)
"""Systems whose asynchronous recipes update weights in flight: NeMo RL's performance/grpo-*-async-1off.yaml."""
EAGER_DAPO: Mapping[str, int] = {"nemo": 3}
"""System → prompts that its DAPO draws for one that it trains on, with engines that capture no graphs: NeMo RL's
examples/configs/recipes/llm/dapo-qwen2.5-7b.yaml and performance/dapo-deepseek-v3-64n8g.yaml."""
IN_PLACE = ("real", "real-heuristic", "deepspeed-chat", "hybridflow", "nemo-aligner")
"""Systems whose engines generate beside the states of training, which stay on the devices."""
FIRST_QUICK_VLLM = (0, 6)
"""Before it vLLM's scheduler and its server kept the device waiting."""
GENERATIONS: Mapping[str, Mapping[str, str]] = {"nemo": {"sync": "packed"}, "openrlhf": {"vllm": "v0"}}
"""System → generations of backends (flowrl/machine/profile.py), where they are not the current ones. OpenRLHF's rows
are of its paper of May 2024 and of ReaL's comparison of June 2024; vLLM 0.6 is of September 2024."""
ROLLS: Mapping[str, int] = {"openrlhf": 8}
"""System → rows of one call of an engine, where all rows of a step are not handed to it at once: the default of
`--micro_rollout_batch_size` of OpenRLHF's examples/train_ppo_ray.py up to its pull request 507 of November 2024, which
sends all prompts."""
LENDING = re.compile(r"\blent\b|lending|hybrid trainer", re.IGNORECASE)
PADDED = re.compile(r"remove_padding off|without packing|padded", re.IGNORECASE)


def fill(record: Record, *, count: int | None = None) -> Case:
    """The case of a record, on `count` devices if it speaks of several numbers. Raises UnusableError."""
    filled: list[str] = []
    if LENDING.search(record.placement):
        raise UnusableError("its trainers lend idle devices to generation within a step, which no placement does")
    gpu = _gpu(record, filled)
    devices = count or record.count
    if devices is None:
        raise UnusableError("no number of devices" if not record.counts else "several numbers of devices")
    models = _models(record)
    algorithm = _algorithm(record, models)
    prompt_mean, prompt_most = _prompt(record, filled)
    response_mean, response_most, fixed = _response(record, prompt_mean, filled)
    samples, prompts = _batch(record, models, prompt_mean + response_mean, filled)
    lag, partial = _lag(record, filled)
    train_backend, rollout_backend = _backends(record)
    pools = pools_of(record, devices, roles_of(models, algorithm), filled)
    updates = UPDATES_OF.get(record.engine) if record.updates is None else record.updates
    if updates is None:
        filled.append("updates")
        updates = UPDATES
    while prompts % updates:
        updates -= 1
    train = dict(record.train)
    if not train and train_backend == "megatron":
        filled.append("train layout")
        train = _enough_rows(pools, prompts * samples // updates)
    if not record.rollout:
        filled.append("rollout layout")
    drawn = EAGER_DAPO.get(record.engine, 1) if "dapo" in record.algorithm.lower() and algorithm == "grpo" else 1
    per_node = record.per_node or (4 if gpu.startswith("GB") else 8)
    return Case(
        record=record,
        gpu=gpu,
        count=devices,
        per_node=min(per_node, devices),
        models=models,
        algorithm=algorithm,
        prompts=prompts,
        samples=samples,
        updates=updates,
        prompt_mean=prompt_mean,
        prompt_most=prompt_most,
        response_mean=response_mean,
        response_most=response_most,
        fixed=fixed,
        lag=lag,
        partial=partial,
        old_log_probs="rollout" if re.search(r"old_log_prob taken from rollout", record.notes) else "recompute",
        train_backend=train_backend,
        rollout_backend=rollout_backend,
        train=train,
        rollout=record.rollout,
        pools=pools,
        filled=tuple(filled),
        resident=record.engine in IN_PLACE,
        host_optimizer=record.engine == "openrlhf" and train_backend == "deepspeed",
        at_once=_at_once(record, rollout_backend),
        packed=not PADDED.search(record.notes),
        draws=drawn,
        eager=drawn > 1,
    )


def _at_once(record: Record, backend: str) -> int | None:
    """Rows that one call of a generator has, of systems that make calls so small."""
    if backend in ("hf", "deepspeed") or record.engine in ROLLS:
        return noted(record.notes, r"micro rollout (\d+)") or (ROLLS.get(record.engine) if backend == "vllm" else None)
    return None


def _enough_rows(pools: tuple[Pool, ...], rows: int) -> dict[str, int]:
    """tp of trainers that would else have ranks without a row."""
    largest = max((pool.gpus for pool in pools if set(pool.roles) - {"actor_infer"}), default=1)
    tp = 1
    while largest // tp > rows and tp < 8:
        tp *= 2
    return {"tp": tp} if tp > 1 else {}


def measured_step(record: Record, case: Case) -> tuple[float, str] | None:
    """Seconds of a step as measured, and how they come from the record ("" if as said)."""
    said = record.number("step_time_s")
    if said is not None and said > 0:
        return said, ""
    listed = record.measured.get("step_time_s_list")
    numbers = [value for each in listed if (value := number(each) or 0.0) > 0] if isinstance(listed, list) else []
    if numbers:
        return median(numbers), f"median of {len(numbers)} steps"
    for key, times in (
        ("tokens_per_s", 1),
        ("effective_train_tokens_per_s", 1),
        ("tokens_per_s_per_gpu", case.count),
        ("effective_tokens_per_s_per_gpu", case.count),
    ):
        rate = record.number(key)
        if rate and rate > 0 and key.startswith("effective"):
            return case.tokens / case.updates / (rate * times), f"tokens of an update / {key}"
        if rate and rate > 0:
            return case.tokens / (rate * times), f"tokens of a step / {key}"
    rate = record.number("samples_per_s")
    if rate and rate > 0:
        return case.prompts * case.samples / rate, "samples of a step / samples_per_s"
    return None


def _gpu(record: Record, filled: list[str]) -> str:
    if record.gpu is None:
        said = f"`{record.gpu_said}` names no device of the catalogue" if record.gpu_said else "no GPU type"
        raise UnusableError(said)
    if record.gpu_from_notes or "not stated" in record.gpu_said:
        filled.append("gpu")
    return record.gpu


def _models(record: Record) -> dict[str, str]:
    if "actor" not in record.models:
        raise UnusableError("no model")
    found: dict[str, str] = {}
    for part, name in record.models.items():
        card = card_of(name) or (found.get("actor") if re.fullmatch(r"[\d.]+B.*|.*from.*", name) else None)
        if card is None and part != "judge":
            raise UnusableError(f"no card of the model `{name}`")
        if card is not None:
            found[part] = card
    if _has_critic(record) and "critic" not in found:
        found |= {part: found["actor"] for part in ("ref", "critic", "reward") if part not in found}
    return found


def _has_critic(record: Record) -> bool:
    said = record.algorithm.lower()
    if "critic" in record.models:
        return True
    if re.search(r"without critic|w/o critic|no critic|decoupled|grpo|dapo|remax|math|code", said):
        return False
    return said.startswith(("ppo", "safe"))


def _algorithm(record: Record, models: Mapping[str, str]) -> str:
    said = record.algorithm.lower()
    if "remax" in said:
        return "remax"
    if "safe" in said and "rlhf" in said:
        return "safe_rlhf"
    return "ppo" if "critic" in models else "grpo"


def _prompt(record: Record, filled: list[str]) -> tuple[float, int]:
    said, most = record.prompt, record.prompt.most
    if said.mean is not None:
        return said.mean, most or round(4 * said.mean)
    filled.append("prompt")
    if most is None:
        most = 1024 if not record.total.most else max(256, record.total.most // 8)
    return min(PROMPT_TOKENS, most / 2), most


def _response(record: Record, prompt: float, filled: list[str]) -> tuple[float, int, bool]:
    said, total, name = record.response, record.total, record.models["actor"]
    if total.mean is not None or total.most is not None:
        most = round(total.most - prompt) if total.most else None
        mean = max(16.0, total.mean - prompt) if total.mean is not None else None
    else:
        most, mean = said.most, said.mean
    if most is None and mean is None:
        raise UnusableError("no length of responses")
    if most is None:
        filled.append("most response")
        most = round(MOST_OVER_MEAN * (mean or 0))
    if mean is None:
        filled.append("response")
        mean = mean_response(name, most, record.algorithm)
    return min(mean, most), most, said.fixed


def _batch(record: Record, models: Mapping[str, str], tokens: float, filled: list[str]) -> tuple[int, int]:
    samples, prompts, usual = record.samples, record.prompts, _usual_batch(record, models)
    if prompts is None and record.rollout_samples is not None:
        samples = samples or min(16, record.rollout_samples)
        return samples, max(1, record.rollout_samples // samples)
    if prompts is None:
        filled.append("batch")
        prompts = usual[0]
    if samples is not None:
        return samples, prompts
    rate, step = record.number("tokens_per_s"), record.number("step_time_s")
    if rate and step and record.prompts is not None:
        derived = rate * step / tokens / prompts
        if 0.75 <= derived <= 256:
            return max(1, round(derived)), prompts
    if usual[1] == 1 or "pairs" in record.notes:
        return 1, prompts
    filled.append("samples")
    return usual[1], prompts


def _usual_batch(record: Record, models: Mapping[str, str]) -> tuple[int, int]:
    said = record.algorithm.lower()
    if "critic" in models or "remax" in said:
        return BATCHES["critic"]
    return BATCHES[next((name for name in ("dapo", "grpo") if name in said), "other")]


def _lag(record: Record, filled: list[str]) -> tuple[int, bool]:
    split = any("rollout" in part.roles for part in record.parts)
    if record.lag is not None:
        under = 0 < record.lag < 1
        lag = 1 if under else round(record.lag)
        return lag, (record.partial or under or record.engine in IN_FLIGHT) and lag > 0
    text = record.placement.lower()
    if "async" in text or "one-step" in text:
        filled.append("lag")
        return LAG_OF_ASYNC, record.partial or record.engine in IN_FLIGHT
    if split:
        filled.append("lag")
    return 0, False


def _backends(record: Record) -> tuple[str, str]:
    train, rollout, said = record.train_backend.lower(), record.rollout_backend.lower(), record.system.lower()
    sides = record.placement.lower()
    if "megatron" in train or (not train and said.startswith(("nemo", "rlinf", "vime", "slime", "real", "llamarl"))):
        trainer = "megatron"
    elif "deepspeed" in train or (not train and said.startswith(("deepspeed", "openrlhf"))):
        trainer = "deepspeed"
    elif not train and any(record.train.get(axis, 1) > 1 for axis in ("tp", "pp", "ep")):
        trainer = "megatron"
    else:
        trainer = "fsdp"
    if "sglang" in rollout and "vllm" not in rollout:
        generator = "sglang"
    elif "tensorrt" in rollout or "trt" in rollout:
        generator = "tensorrt_llm"
    elif "hybrid engine" in sides or "deepspeed-inference" in rollout or rollout.startswith("hf"):
        generator = "deepspeed" if "hf" not in rollout else "hf"
    else:
        generator = "vllm"
    return known_backend(trainer, "trainer", "fsdp"), known_backend(generator, "generator", "vllm")


def known_backend(name: str, kind: str, instead: str) -> str:
    """`name`, if its traits have the kind of role."""
    traits = TRAITS.get(name)
    return name if traits is not None and kind in traits.kinds else instead
