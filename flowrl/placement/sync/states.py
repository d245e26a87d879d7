"""What a role keeps between steps, by kind, and how each kind is cut over its devices.

Takes a Placed role; gives states in elements and bytes per element. Gradients, activations and caches are made anew and
are none. Knows no links.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from flowrl.placement.cost.ledger import Given
from flowrl.placement.cost.placed import Placed, model_inputs
from flowrl.placement.memory.shards import is_trained, shard_ranks, training_inputs, trains_adapter
from flowrl.placement.sync.cuts import Cut, cut_of
from flowrl.placement.sync.tensors import Tensors, adapter_tensors, tensors_of

WEIGHTS, MASTER, MOMENTS = "weights", "master weights", "optimizer states"
TRAINERS = ("fsdp", "deepspeed", "megatron")
"""Backends whose shards this module knows; others hold a copy on each rank, or engines cut it."""


@dataclass(frozen=True, slots=True)
class Part:
    """Ranks that one cut divides a part of the model over: all of them, or those of one stage of a pipeline."""

    tensors: tuple[Tensors, ...]
    cut: Cut
    ranks: tuple[int, ...]
    """Of the role, by rank of the cut."""


@dataclass(frozen=True, slots=True)
class State:
    """One kind of what a role keeps."""

    what: str
    width: Given
    """Bytes of an element."""
    parts: tuple[Part, ...]

    @property
    def elements(self) -> int:
        """Each once, however many ranks hold it."""
        return sum(each.elements for part in self.parts for each in part.tensors)


def states_of(placed: Placed) -> tuple[State, ...]:
    """Weights, master weights and optimizer states, as far as the role keeps them itself.

    FSDP2 trains its float32 weights, so they are the master weights. ZeRO cuts those of the optimizer over all ranks at
    every stage (arXiv:1910.02054), Megatron's distributed optimizer over the ranks that hold the same weights.
    """
    if placed.shape is None or placed.shared:
        return ()
    whole, kept = tensors_of(placed.shape), cut_of(placed)
    everyone = (Part(whole, kept, tuple(range(kept.ranks))),)
    if placed.backend not in TRAINERS:
        return (State(WEIGHTS, model_inputs(placed)["w"], everyone),)
    inputs = training_inputs(placed)
    width = inputs["m" if placed.backend == "fsdp" else "w"]
    if not is_trained(placed):
        return (State(WEIGHTS, width, everyone),)
    adapted = trains_adapter(placed)
    trained = adapter_tensors(placed.adapter, placed.shape.layers) if adapted else whole
    found: list[State] = []
    if adapted or placed.backend != "fsdp":
        found.append(State(WEIGHTS, width, everyone))
    parts = tuple(_optimizer_parts(placed, kept, trained))
    if placed.backend != "megatron" or placed.dtype_bytes < 4 or adapted:
        found.append(State(MASTER, inputs["t"] if adapted or placed.backend != "fsdp" else width, parts))
    if inputs["o"].value:
        found.append(State(MOMENTS, inputs["o"], parts))
    return tuple(found)


def _optimizer_parts(placed: Placed, kept: Cut, trained: tuple[Tensors, ...]) -> Iterator[Part]:
    """How master weights and moments are cut."""
    shard = int(shard_ranks(placed).value)
    if placed.backend == "megatron":
        yield from stage_parts(trained, kept, shard)
    else:
        yield Part(trained, replace(kept, shard=shard), tuple(range(kept.ranks)))


def stage_parts(tensors: tuple[Tensors, ...], cut: Cut, shard: int) -> Iterator[Part]:
    """Megatron's distributed optimizer: of each stage, what tp and ep leave of a tensor is shared out by rows among the
    ranks that hold the same. Its own borders run through a flat buffer; by rows each rank has as much. What both ends
    of a pipeline have (a tied embedding) is a part of its own, of which each end holds a copy."""
    size = cut.tp * cut.rest
    both = tuple(each for each in tensors if each.rule.place == "ends" and cut.pp > 1)
    if both:
        ranks = (*range(size), *range(cut.ranks - size, cut.ranks))
        yield Part(both, Cut("rows", 2 * size, cut.tp, 1, 1, shard), ranks)
    for stage in range(cut.pp):
        here = tuple(part for each in tensors if (part := _of_stage(each, cut, stage)) is not None)
        ranks = tuple(range(stage * size, (stage + 1) * size))
        experts = tuple(each for each in here if each.rule.experts and cut.ep > 1)
        others = tuple(each for each in here if each not in experts)
        if others:
            yield Part(others, Cut("rows", size, cut.tp, 1, 1, shard), ranks)
        if experts:
            tp = cut.expert_tp
            yield Part(experts, Cut("rows", size, tp, 1, cut.ep, size // tp), ranks)


def _of_stage(tensors: Tensors, cut: Cut, stage: int) -> Tensors | None:
    """The layers of a class that a stage alone has; None: it has none of them."""
    if cut.pp == 1:
        return tensors
    if tensors.rule.place != "layers":
        return tensors if {"first": 0, "last": cut.pp - 1}.get(tensors.rule.place) == stage else None
    layers = tuple(layer for layer in tensors.layers if cut.stages[stage] <= layer < cut.stages[stage + 1])
    return replace(tensors, layers=layers) if layers else None
