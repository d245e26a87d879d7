"""What of a model one stage of a pipeline holds: layers, parameters, experts. Pure; takes a shape and a layout.

Layers that pp does not divide go to the stages in the middle first, whose neighbours hold the embedding and the head
(Megatron Core's num_layers_in_first_pipeline_stage and num_layers_in_last_pipeline_stage leave them fewer).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from flowrl.machine.shape import ModelShape


@dataclass(frozen=True, slots=True)
class Stage:
    layers: int
    others: int
    """Parameters that are no routed experts, embedding and head of its place among them."""
    experts: int
    """Parameters of routed experts."""
    words: str


@lru_cache(maxsize=1024)
def stage_layers(count: int, pp: int) -> tuple[int, ...]:
    """Layers of each stage."""
    each, over = divmod(count, pp)
    order = sorted(range(pp), key=lambda stage: (stage in (0, pp - 1), stage))
    more = set(order[:over])
    return tuple(each + (stage in more) for stage in range(pp))


@lru_cache(maxsize=1024)
def stage_of(shape: ModelShape, pp: int, stage: int) -> Stage:
    """A tied head is on the last stage once more (Megatron Core's shared embedding)."""
    counts = stage_layers(shape.layers, pp)
    before, count = sum(counts[:stage]), counts[stage]
    experts_of_layer = shape.experts * shape.expert_parameters if shape.experts else 0
    dense = max(0, min(count, shape.dense_layers - before))
    share = shape.sparse_layers / max(1, shape.layers - shape.dense_layers)
    experts = round((count - dense) * share * experts_of_layer)
    body = shape.parameters - shape.root_parameters - shape.expert_parameters_total
    others = round(body * count / shape.layers)
    last_norm = shape.norm_parameters if shape.last_norm else 0
    if pp == 1:
        others += shape.root_parameters
    elif stage == 0:
        others += shape.root_parameters - shape.head_parameters - last_norm
    elif stage == pp - 1:
        head = shape.embedding_parameters if shape.tied and shape.head == "lm" else shape.head_parameters
        others += head + last_norm
    where = f"stage {stage + 1} of {pp}, {count} of {shape.layers} layers"
    return Stage(count, others, experts, f"{where}: {shape.origin}")


@lru_cache(maxsize=1024)
def stages_alike(shape: ModelShape, pp: int) -> tuple[int, ...]:
    """For each stage the first that holds as much and is as far as it the last one or not: `words` aside, the same."""
    first: dict[tuple[int, int, int, bool], int] = {}
    found: list[int] = []
    for stage in range(pp):
        here = stage_of(shape, pp, stage)
        found.append(first.setdefault((here.layers, here.others, here.experts, stage == pp - 1), stage))
    return tuple(found)


@lru_cache(maxsize=4096)
def in_flight(alike: tuple[int, ...], most: int) -> tuple[int, ...]:
    """For each stage the first of those `alike` that has as many micro-batches in flight, if there are `most`: stage s
    of p has p - s at most (1F1B, Narayanan et al. 2021, arXiv:2104.04473)."""
    first: dict[tuple[int, int], int] = {}
    pp = len(alike)
    return tuple(first.setdefault((same, min(pp - stage, most)), stage) for stage, same in enumerate(alike))
