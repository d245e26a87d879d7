"""Job → flow of FlowRL, as the text of its YAML. Knows the language; works out no memory.

A critic makes it PPO (GAE), none makes it GRPO; a `reference` is fed to a KL penalty. Rewards by rule or by an endpoint
are a function, which needs no device. Engine keys that this version of the language does not have, or does not have for
a backend, are left out and named in what `flow_of` gives back.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import yaml

from benchmarks.facts.cards import card_of
from benchmarks.facts.jobs import Job, Party, UnreadableError
from benchmarks.facts.names import card_by_loose_name
from flowrl.machine.models import CARDS
from flowrl.machine.traits import TRAITS
from flowrl.spec.blocks import EngineDocument

REWARD = {"function": "flowrl:overlong", "args": {"max_tokens": 4096, "buffer_tokens": 512, "penalty": 1.0}}
DEFAULT_TOKENS = 16384
SHORTEST_NAME = 7
"""Letters of a card's name below which it is not looked for inside other names."""
KL = {"coef": 0.001, "form": "k3"}
_BY_KIND = {
    "generator": frozenset(
        {
            "kv_fraction",
            "max_sequences",
            "max_batch_tokens",
            "max_model_tokens",
            "cuda_graphs",
            "sleep_level",
            "kv_dtype",
            "weights_dtype",
        }
    )
}
"""Keys that an engine takes and a trainer does not."""


def flow_of(job: Job) -> tuple[str, tuple[str, ...]]:
    """The flow's YAML and the engine keys that were left out. Raises UnreadableError."""
    left_out: list[str] = []
    models: dict[str, Any] = {}
    roles: dict[str, Any] = {}
    for party in job.parties:
        models[f"of_{party.name}"] = _model(party)
        roles[party.name] = _role(job, party, left_out)
    if "reward" not in roles:
        roles["reward"] = dict(REWARD)
    has_critic, has_reference = job.party("critic") is not None, job.party("reference") is not None
    advantage: dict[str, Any] = {"estimator": "gae" if has_critic else "grpo" if job.samples > 1 else "reinforce"}
    roles["advantage"] = advantage
    if has_critic and has_reference:
        advantage["kl"] = {"coef": KL["coef"]}
    elif has_reference:
        roles["actor_train"]["update"]["kl"] = dict(KL)
    document = {
        "flowrl": 1,
        "name": "job",
        "cluster": {"gpu": job.gpu, "nodes": job.nodes, "gpus_per_node": job.gpus_per_node},
        "models": models,
        "data": {"train": {"source": "rows.jsonl", "max_prompt_tokens": job.prompt_tokens}},
        "roles": roles,
        "edges": _edges(job),
        "step": {"prompts": job.prompts, "samples_per_prompt": job.samples, "updates": job.updates},
        "schedule": {"max_lag": job.max_lag},
        "placement": {"pools": {name: _pool(job, name, gpus) for name, gpus in job.pools.items()}},
    }
    return yaml.safe_dump(document, sort_keys=False), tuple(dict.fromkeys(left_out))


def card_named(name: str) -> str | None:
    """The card of a model as a setting writes it: by the rules of loose names, or the longest of the catalogue's names
    that it holds (`OpenRLHF/Llama-3-8b-sft-mixture` is a Llama-3-8B, `DeepSeek-R1 671B` a DeepSeek-R1)."""
    found = card_by_loose_name(name) or card_of(name)
    if found is not None:
        return found
    said = _plain(name)
    near = [(len(plain), card) for plain, card in _plain_cards() if len(plain) >= SHORTEST_NAME and plain in said]
    return max(near)[1] if near else None


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", re.sub(r"\(.*?\)", "", name).rsplit("/", 1)[-1].lower())


@lru_cache(maxsize=1)
def _plain_cards() -> tuple[tuple[str, str], ...]:
    """Cards by their name without owner, punctuation and `Meta-`."""
    return tuple((_plain(card).removeprefix("meta"), card) for card in CARDS)


def _model(party: Party) -> dict[str, Any]:
    card = card_named(party.model)
    if card is None:
        raise UnreadableError(f"no card of the model `{party.model}`")
    model: dict[str, Any] = {"source": card}
    if party.name in ("critic", "reward") and party.kind != "generator":
        model["head"] = "scalar"
    if party.lora_rank is not None and party.kind in ("trainer", "generator"):
        model["lora"] = {"rank": party.lora_rank, "alpha": party.lora_rank}
    return model


def _role(job: Job, party: Party, left_out: list[str]) -> dict[str, Any]:
    role: dict[str, Any] = {"kind": party.kind, "model": f"of_{party.name}", "backend": party.backend}
    if party.backend not in TRAITS or party.kind not in TRAITS[party.backend].kinds:
        raise UnreadableError(f"no traits of `{party.backend}` as a {party.kind}")
    engine = {key: value for key, value in party.engine.items() if _has(party, key)}
    left_out += [key for key in party.engine if not _has(party, key)]
    role["engine"] = engine
    if party.kind == "generator":
        limit = {} if job.context_tokens is None else {"max_context_tokens": job.context_tokens}
        role["generate"] = {"max_response_tokens": job.response_tokens, **limit}
    elif party.kind == "trainer":
        method = "values" if party.name == "critic" else "log_probs"
        update: dict[str, Any] = {"loss": "value" if party.name == "critic" else "ppo"}
        role["update"] = update | {"micro_batch_tokens": _on_a_device(party, party.update_tokens)}
        role[method] = {"micro_batch_tokens": _on_a_device(party, party.forward_tokens or party.update_tokens)}
        if party.name == "actor_train":
            role["update"]["old_log_probs"] = "recompute"
    else:
        role["micro_batch_tokens"] = _on_a_device(party, party.forward_tokens)
    return role


def _on_a_device(party: Party, tokens: int | None) -> int:
    """The flow's budget is that of one device, after context parallelism has cut the sequences."""
    return -(-(tokens or DEFAULT_TOKENS) // party.cut.cp)


def _has(party: Party, key: str) -> bool:
    """Whether the language has the key, for a role of this kind."""
    if key not in EngineDocument.model_fields:
        return False
    return party.kind == "generator" or party.backend in ("vllm", "sglang") or key not in _BY_KIND["generator"]


def _edges(job: Job) -> list[str]:
    critic, reference = job.party("critic"), job.party("reference")
    reads = ["reward.score", "actor_train.log_probs"]
    reads += ["critic.values"] if critic else []
    reads += ["reference.log_probs"] if reference else []
    reads += [f"{each.name}.log_probs" for each in _teachers(job)]
    judged = [name for name in reads if name != "actor_train.log_probs"] if not critic else reads
    if not critic:
        judged = [name for name in judged if name != "reference.log_probs"]
    updates = ["actor_train.update", *(["critic.update"] if critic else [])]
    edges = [
        "data.train -> actor_infer.generate",
        f"actor_infer.generate -> {', '.join(reads)}",
        f"{', '.join(judged)} -> advantage.estimate",
        f"advantage.estimate -> {', '.join(updates)}",
        "actor_train => actor_infer",
    ]
    late = [name for name in reads if name not in judged]
    return [*edges, *([f"{', '.join(late)} -> actor_train.update"] if late else [])]


def _teachers(job: Job) -> list[Party]:
    return [party for party in job.parties if party.kind == "scorer" and party.name != "reference"]


def _pool(job: Job, name: str, gpus: int) -> dict[str, Any]:
    here = job.of_pool(name)
    layouts = {party.name: _layout(party) for party in here if not party.free}
    pool: dict[str, Any] = {"gpus": gpus, "roles": [party.name for party in here]}
    return pool | ({"layouts": layouts} if layouts else {})


def _layout(party: Party) -> Mapping[str, int]:
    axes = {"tp": party.cut.tp, "pp": party.cut.pp, "cp": party.cut.cp, "ep": party.cut.ep}
    return dict(axes)
