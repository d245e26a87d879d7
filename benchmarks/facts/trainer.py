"""One trainer alone on its devices as a flow, and what its plan says of a micro-batch: for records of training memory.

Takes a Trainer, gives the ledger lines of its update. No fragmentation, no CUDA context: what a tracker or torch's
allocator counts is the role's own lines.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from flowrl.api.compile import check_spec
from flowrl.api.machine import cluster_of
from flowrl.compiler.lower.placement import lower_placement
from flowrl.diag.diagnostic import FlowError
from flowrl.machine.profile import PROFILE, Profile
from flowrl.placement.place import place
from flowrl.placement.shapes import shapes_of
from flowrl.plan.plan import LedgerLine
from flowrl.spec.pipeline import loads

FOLDER = Path(__file__).parent
NODE = 8


class NotPlannedError(Exception):
    """The planner refuses the trainer; its words."""


@dataclass(frozen=True)
class Trainer:
    model: str
    gpu: str
    devices: int
    tokens: int
    """Of one micro-batch."""
    micro_batches: int = 1
    layout: Mapping[str, int] = field(default_factory=dict[str, int])
    engine: Mapping[str, Any] = field(default_factory=dict[str, Any])
    model_keys: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Such as `lora`."""


def update_lines(trainer: Trainer, profile: Profile = PROFILE) -> tuple[LedgerLine, ...]:
    """The role's own lines at the peak of its update. Raises NotPlannedError."""
    try:
        return _lines(trainer, profile)
    except FlowError as error:
        raise NotPlannedError(f"{error.diagnostics[0].code} {error.diagnostics[0].headline}") from None


def _lines(trainer: Trainer, profile: Profile) -> tuple[LedgerLine, ...]:
    spec = loads(json.dumps(document_of(trainer)), folder=str(FOLDER))
    checked = check_spec(spec)
    if not checked.graphs:
        raise FlowError(checked.diagnostics)
    graph = checked.graphs[0]
    request = replace(lower_placement(spec, 0), profile=profile)
    placement = place(graph, cluster_of(spec, None), request, shapes_of(graph, spec.folder, {}))
    phases = [entry for entry in placement.memory if entry.phase == "actor_train.update"]
    fullest = max(phases, key=lambda entry: sum(line.value for line in entry.lines if line.role))
    return tuple(line for line in fullest.lines if line.role == "actor_train")


def document_of(trainer: Trainer) -> dict[str, Any]:
    """Supervised training on rows that fill a micro-batch each; their purpose changes nothing."""
    ranks = trainer.devices
    for axis in ("tp", "pp", "cp"):
        ranks //= trainer.layout.get(axis, 1)
    per_node = min(trainer.devices, NODE)
    pool = {"gpus": trainer.devices, "roles": ["actor_train"], "layouts": {"actor_train": {"tp": 1, **trainer.layout}}}
    whole = trainer.tokens * trainer.layout.get("cp", 1)
    return {
        "flowrl": 1,
        "name": "record",
        "cluster": {"gpu": trainer.gpu, "nodes": max(1, trainer.devices // per_node), "gpus_per_node": per_node},
        "models": {"policy": {"source": trainer.model, **trainer.model_keys}},
        "data": {"train": {"source": "train.jsonl", "prompt": "prompt", "response": "response"}},
        "roles": {
            "actor_train": {
                "model": "policy",
                "backend": "fsdp",
                "engine": dict(trainer.engine),
                "update": {"loss": "sft", "micro_batch_tokens": whole},
            }
        },
        "edges": ["data.train -> actor_train.update"],
        "step": {"prompts": max(1, ranks) * trainer.micro_batches},
        "placement": {"pools": {"train": pool}},
    }
