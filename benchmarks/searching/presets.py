"""Every preset on a cluster, given what its header asks for. Takes names, a model and a number of GPUs; gives a Given,
lowered. The steps are large enough that each rank of the largest cluster has a row."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowrl.compiler.lower.cluster import lower_stage_cluster
from flowrl.compiler.lower.graph import lower_stage
from flowrl.compiler.lower.placement import lower_placement
from flowrl.compiler.passes.pipeline import run_passes
from flowrl.graph.graph import Graph
from flowrl.machine.cluster import Cluster
from flowrl.machine.shape import ModelShape
from flowrl.placement.cost.placed import needs_devices
from flowrl.placement.request import PlacementRequest
from flowrl.placement.shapes import shapes_of
from flowrl.spec.pipeline import loads

PRESETS = tuple(sorted(path.stem for path in (Path(__file__).resolve().parents[2] / "flowrl/presets").glob("*.yaml")))
MODELS: Mapping[str, str] = {
    "7B": "Qwen/Qwen2.5-7B-Instruct",
    "32B": "Qwen/Qwen2.5-32B-Instruct",
    "70B": "meta-llama/Llama-3.1-70B-Instruct",
    "235B MoE": "Qwen/Qwen3-235B-A22B",
}
GPUS = (8, 16, 64, 256)
REWARD_MODEL = "Skywork/Skywork-Reward-V2-Llama-3.1-8B"
PROMPTS = 1024
FOLDER = Path(__file__).resolve().parents[1] / "flows" / "search"
"""Where `rewards.py` is."""


@dataclass(frozen=True)
class Given:
    """What is placed, and on what."""

    name: str
    graph: Graph
    cluster: Cluster
    request: PlacementRequest
    shapes: Mapping[str, ModelShape]

    @property
    def roles(self) -> tuple[str, ...]:
        return tuple(role.name for role in self.graph.roles if needs_devices(role))


def given(preset: str, size: str, gpus: int, device: str = "H100-80G") -> Given:
    document: dict[str, Any] = {
        "flowrl": 1,
        "name": preset,
        "use": preset,
        "cluster": {"gpu": device, "nodes": max(1, gpus // 8), "gpus_per_node": min(8, gpus)},
        "step": {"prompts": PROMPTS},
        **_own(preset, MODELS[size]),
    }
    spec = loads(json.dumps(document), folder=str(FOLDER))
    graph, _ = run_passes(lower_stage(spec, 0))
    cluster, request = lower_stage_cluster(spec, 0), lower_placement(spec, 0)
    return Given(f"{preset} {size} on {gpus}", graph, cluster, request, shapes_of(graph, spec.folder))


def _own(preset: str, policy: str) -> dict[str, Any]:
    """Models, data and rewards that the preset's header leaves to the user. All models are of the policy's size but
    reward models."""
    scalar = {"source": policy, "head": "scalar"}
    graded = {"source": REWARD_MODEL, "head": "scalar"}
    models: dict[str, Any] = {"policy": {"source": policy}}
    columns: dict[str, Any] = {"keep": ["answer"]}
    roles: dict[str, Any] = {"reward": {"function": "rewards.py:score"}}
    match preset:
        case "ppo":
            models |= {"value": scalar, "reward_model": graded}
            roles = {"reward": {"model": "reward_model", "backend": "fsdp"}}
        case "sft":
            columns, roles = {"response": "answer"}, {}
        case "rm":
            models = {"reward_model": scalar}
            columns, roles = {"chosen": "answer", "rejected": "wrong"}, {}
        case "on_policy_distill":
            models["teacher"], roles = {"source": policy}, {}
        case "online_dpo":
            roles = {"reward": {"function": "rewards.py:compare"}}
        case "safe_rlhf":
            models |= {"value": scalar, "cost_value": scalar, "reward_model": graded, "cost_model": graded}
            roles = {}
        case _:
            pass
    data = {"train": {"source": "rows.jsonl", "prompt": "question", "max_prompt_tokens": 1024, **columns}}
    return {"models": models, "data": data, **({"roles": roles} if roles else {})}
