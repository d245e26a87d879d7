"""Random instances: flows shaped like PPO with some of its roles, catalogue models, small clusters of one or two kinds
of device, and a short menu of choices for each role.

An instance is made of a seed and a number alone, so a failure is shown again by naming both. Takes numbers; gives
Instances, lowered. Knows no search.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import comb
from random import Random
from typing import Any

from msgspec import structs

from flowrl.compiler.lower.cluster import lower_stage_cluster
from flowrl.compiler.lower.graph import lower_stage
from flowrl.compiler.lower.placement import lower_placement
from flowrl.compiler.passes.pipeline import run_passes
from flowrl.graph.graph import Graph
from flowrl.machine.cluster import Cluster
from flowrl.machine.shape import ModelShape
from flowrl.placement.choices import Choices
from flowrl.placement.cost.placed import needs_devices
from flowrl.placement.cost.role import RoleCosts, Site
from flowrl.placement.request import LayoutRequest, PlacementRequest
from flowrl.placement.shapes import shapes_of
from flowrl.plan.plan import RolePlacement
from flowrl.spec.pipeline import loads

SMALL = ("Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-1.5B", "Qwen/Qwen2.5-3B", "Qwen/Qwen3-4B", "Qwen/Qwen2.5-7B")
LARGE = ("Qwen/Qwen2.5-7B", "Qwen/Qwen3-14B", "Qwen/Qwen3-30B-A3B", "Qwen/Qwen2.5-32B", "meta-llama/Llama-3.1-70B")
"""Of which a few devices hold some and not others."""
SCORERS = ("Skywork/Skywork-Reward-V2-Qwen3-0.6B", "Skywork/Skywork-Reward-V2-Llama-3.1-8B")
TEACHERS = ("Qwen/Qwen3-14B", "Qwen/Qwen2.5-32B", "Qwen/Qwen3-30B-A3B")
DEVICES = ("A100-40G", "A100-80G", "H100-80G", "H100-80G", "H200", "H200", "H20", "L40S", "B200", "MI300X")
PRICES = (1.0, 2.5, 4.0)
REWARDS = ("reward", "taste", "teacher")
OVERLONG = {"max_tokens": 512, "buffer_tokens": 128, "penalty": 1.0}
MOST_OPTIONS = 6
MOST_LOOKED_AT = 60_000
"""Placements of one instance; but of one in WHOLE_EVERY, which has MOST_OPTIONS whatever that makes."""
WHOLE_EVERY = 100
SMALL_HOST_EVERY = 7
"""One in so many has nodes whose host memory may bind."""


@dataclass(frozen=True)
class Instance:
    """What is to be placed, and on what."""

    name: str
    text: str
    graph: Graph
    cluster: Cluster
    request: PlacementRequest
    shapes: Mapping[str, ModelShape]
    options: int
    """The most choices of a role on a site."""

    @property
    def roles(self) -> tuple[str, ...]:
        """Those on devices, in the order of the graph."""
        return tuple(role.name for role in self.graph.roles if needs_devices(role))

    @property
    def mixed(self) -> bool:
        return len(self.cluster.groups) > 1


class Menu(Choices):
    """At most `most` of the choices that a role has on a site: which ones is drawn for the role and the site."""

    def __init__(self, costs: RoleCosts, name: str, most: int) -> None:
        super().__init__(costs)
        self._name, self._most = name, most
        self._drawn: dict[tuple[object, ...], tuple[RolePlacement, ...]] = {}

    def of(self, role: str, site: Site, layout: LayoutRequest | None = None) -> tuple[RolePlacement, ...]:
        key = (role, site.key, layout)
        if key not in self._drawn:
            every = super().of(role, site, layout)
            at = Random(f"{self._name} {role} {site.group.name} {site.count}")
            kept = sorted(at.sample(range(len(every)), min(self._most, len(every))))
            self._drawn[key] = tuple(every[place] for place in kept)
        return self._drawn[key]


def instance(seed: int, number: int) -> Instance:
    """The instance `number` of `seed`: every other one has two kinds of device; two of three have up to 5 roles on up
    to 8 devices, the third up to 3 roles on up to 16."""
    draw = Random(f"{seed}-{number}")
    wide = number % 3 == 2
    roles, devices = (draw.choice((2, 3, 3)), 16) if wide else (draw.choice((3, 4, 4, 5, 5)), 8)
    document = _flow(draw, roles)
    document["cluster"] = _cluster(draw, devices, mixed=number % 2 == 1)
    whole = number % WHOLE_EVERY == 0
    made = lowered(f"{seed}-{number}", document)
    if number % SMALL_HOST_EVERY == 0:
        made = replace(made, cluster=_on_small_hosts(draw, made.cluster))
    options = MOST_OPTIONS if whole else draw.choice((2, 3, 4, 6))
    while options > 2 and not whole and shapes(made) * options ** len(made.roles) > MOST_LOOKED_AT:
        options -= 1
    return replace(made, options=options)


def _on_small_hosts(draw: Random, cluster: Cluster) -> Cluster:
    sizes = [draw.choice((64, 128, 256)) * 2**30 for _ in cluster.groups]
    groups = tuple(
        structs.replace(group, host_memory_bytes=size) for group, size in zip(cluster.groups, sizes, strict=True)
    )
    return structs.replace(cluster, groups=groups)


def shapes(instance: Instance) -> int:
    """How many ways there are to cut roles into pools and to give each a group and a number of devices."""
    roles, sizes = len(instance.roles), [g.nodes * g.devices_per_node for g in instance.cluster.groups]
    ways = [1] + [0] * roles
    """By number of pools, their order told apart."""
    for size in sizes:
        ways = [sum(comb(k, j) * comb(size, j) * ways[k - j] for j in range(k + 1)) for k in range(roles + 1)]
    return sum(_stirling(roles, pools) * count for pools, count in enumerate(ways))


def _stirling(roles: int, pools: int) -> int:
    """Ways to put so many roles into so many pools, none empty."""
    if roles == 0 or pools == 0:
        return int(roles == pools)
    return pools * _stirling(roles - 1, pools) + _stirling(roles - 1, pools - 1)


def lowered(name: str, document: Mapping[str, Any], options: int = MOST_OPTIONS) -> Instance:
    """The instance of a flow that is written as a document."""
    text = json.dumps(document)
    spec = loads(text, folder=".")
    graph, _ = run_passes(lower_stage(spec, 0))
    cluster, request = lower_stage_cluster(spec, 0), lower_placement(spec, 0)
    return Instance(name, text, graph, cluster, request, shapes_of(graph, spec.folder), options)


# -- flows ------------------------------------------------------------------------------------------------------------


def _flow(draw: Random, wanted: int) -> dict[str, Any]:
    """A flow of `wanted` roles with models: a trainer and its generator, and some of critic, reference, reward models
    and a teacher that grades."""
    heavy = draw.random() < 0.4
    policy = draw.choice(LARGE if heavy else SMALL)
    trains = draw.choice(("fsdp", "fsdp", "megatron", "megatron", "deepspeed"))
    others = draw.sample(("critic", "reference", "reward", "taste", "teacher"), wanted - 2)
    models: dict[str, Any] = {"policy": {"source": policy}}
    if trains != "megatron" and draw.random() < 0.2:
        models["policy"]["lora"] = {"rank": draw.choice((16, 64)), "alpha": 32}
    rows = _rows(draw)
    return {
        "flowrl": 1,
        "name": "instance",
        "models": models | _other_models(draw, others, policy, heavy),
        "data": {"train": {"source": "rows.jsonl", "max_prompt_tokens": draw.choice((256, 1024))}},
        "roles": _roles(draw, others, trains),
        "edges": _edges(others),
        "step": rows,
        "schedule": _schedule(draw),
    }


def _rows(draw: Random) -> dict[str, int]:
    """Enough rows in a minibatch for every rank of 16 devices, most of the time."""
    updates = draw.choice((1, 1, 2, 4))
    return {"prompts": draw.choice((16, 64, 128)), "samples_per_prompt": draw.choice((4, 8)), "updates": updates}


def _schedule(draw: Random) -> dict[str, Any]:
    lag = draw.choice((0, 0, 1, 2))
    return {"max_lag": lag, "partial_rollout": True} if lag and draw.random() < 0.3 else {"max_lag": lag}


def _other_models(draw: Random, others: Sequence[str], policy: str, heavy: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if "critic" in others:
        other = draw.choice((policy, draw.choice(LARGE if heavy else SMALL)))
        same = other.partition("/")[0] == policy.partition("/")[0]  # values of tokens need the policy's tokenizer
        found["value"] = {"source": other if same else policy, "head": "scalar"}
    for name in ("reward", "taste"):
        if name in others:
            found[f"{name}_model"] = {"source": draw.choice(SCORERS), "head": "scalar"}
    if "teacher" in others:
        found["teacher_model"] = {"source": draw.choice(TEACHERS if heavy else SMALL), "head": "scalar"}
    return found


def _roles(draw: Random, others: Sequence[str], trains: str) -> dict[str, Any]:
    """Reward models stand beside a rule, so that every flow has a reward."""
    generates = (
        "deepspeed" if trains == "deepspeed" and draw.random() < 0.5 else draw.choice(("vllm", "sglang", "vllm"))
    )
    engine: dict[str, Any] = {}
    if draw.random() < 0.2:
        engine["offload"] = draw.random() < 0.5
    if draw.random() < 0.3:
        engine["recompute"] = draw.choice(("full", "none"))
    found: dict[str, Any] = {
        "actor_train": {"model": "policy", "backend": trains, "engine": engine, "update": {"loss": "ppo"}},
        "actor_infer": {
            "model": "policy",
            "backend": generates,
            "generate": {"max_response_tokens": draw.choice((512, 2048, 8192))},
        },
        "rule": {"kind": "reward", "function": "flowrl:overlong", "args": OVERLONG},
    }
    if "critic" in others:
        found["critic"] = {"model": "value", "backend": trains, "update": {"loss": "value"}}
    if "reference" in others:
        found["reference"] = {"model": "policy", "backend": draw.choice((trains, trains, "vllm", "hf"))}
    for name in REWARDS:
        if name in others:
            backend = draw.choice((trains, "fsdp", "hf"))
            found[name] = {"kind": "reward", "model": f"{name}_model", "backend": backend}
    weights = {name: 1.0 for name in ("rule", *REWARDS) if name in found}
    found["total"] = {"kind": "reward", "combine": weights}
    estimates: dict[str, Any] = {"estimator": "gae" if "critic" in others else "grpo"}
    found["advantage"] = estimates
    if "critic" in others and "reference" in others:
        estimates["kl"] = {"coef": 0.001}
    elif "reference" in others:
        found["actor_train"]["update"]["kl"] = {"coef": 0.001, "form": "k3"}
    return found


def _edges(others: Sequence[str]) -> list[str]:
    rewards = ["rule", *(name for name in REWARDS if name in others)]
    with_critic, with_reference = "critic" in others, "reference" in others
    read = [f"{name}.score" for name in rewards]
    into = ["total.score"]
    read += ["reference.log_probs"] if with_reference else []
    if with_critic:
        more = ["critic.values", "actor_train.log_probs"]
        read += more
        into += [*more, "reference.log_probs"] if with_reference else more
    edges = [
        "data.train -> actor_infer.generate",
        f"actor_infer.generate -> {', '.join(read)}",
        f"{', '.join(f'{name}.score' for name in rewards)} -> total.score",
    ]
    edges.append(f"{', '.join(into)} -> advantage.estimate")
    edges.append(f"advantage.estimate -> actor_train.update{', critic.update' if with_critic else ''}")
    if with_reference and not with_critic:
        edges.append("reference.log_probs -> actor_train.update")
    return [*edges, "actor_train => actor_infer"]


# -- clusters ---------------------------------------------------------------------------------------------------------


def _cluster(draw: Random, most: int, *, mixed: bool) -> dict[str, Any]:
    if not mixed:
        per_node = draw.choice((1, 2, 3, 4, 8))
        nodes = draw.randint(max(1, -(-most // 3 // per_node)), most // per_node)
        price = draw.choice(PRICES)
        return {"gpu": draw.choice(DEVICES), "nodes": nodes, "gpus_per_node": per_node, "price_per_gpu_hour": price}
    names, left = draw.sample(sorted(set(DEVICES)), 2), most
    groups: dict[str, Any] = {}
    for place, gpu in enumerate(names):
        per_node = draw.choice((1, 2, 2, 4))
        room = (left if place else most // 2) // per_node
        nodes = draw.randint(max(1, room // 2), max(1, room))
        price = draw.choice(PRICES)
        entry = {"gpu": gpu, "nodes": nodes, "gpus_per_node": per_node, "price_per_gpu_hour": price}
        groups[f"g{place}"] = entry
        left -= nodes * per_node
    return {"groups": groups}
