"""How a role's layout cuts each class of tensor over its devices: the shards that every rank holds.

A tensor class is a box with four sides (its layers, experts, rows, columns). A Cut divides each side into intervals and
gives every rank one interval of each side, or nothing: ranks with the same intervals hold copies. ZeRO cuts a matrix
in its flat order instead, which is the one interval that is no box (`flat`). Knows no bytes and no links.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise

from flowrl.machine.traits import ENGINES
from flowrl.placement.cost.placed import Placed
from flowrl.placement.memory.shards import shard_ranks
from flowrl.placement.memory.stages import stage_layers
from flowrl.placement.sync.tensors import Rule, Tensors

Edges = tuple[int, ...]
"""Where the intervals of a side begin, ascending, and its end."""
Place = tuple[int, int, int, int]
"""Which interval of layers, experts, rows and columns."""


@dataclass(frozen=True, slots=True)
class Cut:
    style: str
    """rows: FSDP2, dim 0 of each tensor over `shard` ranks inside what tp leaves · flat: ZeRO 3 · megatron · engine."""
    ranks: int
    tp: int = 1
    pp: int = 1
    ep: int = 1
    shard: int = 1
    """Ranks that share one copy (rows, flat)."""
    stages: Edges = ()
    """Of pp > 1: the first layer of each stage, and the number of layers."""

    @property
    def rest(self) -> int:
        """Ranks beside tp and pp: dp and cp together."""
        return self.ranks // (self.tp * self.pp)

    @property
    def expert_tp(self) -> int:
        """By how much tp cuts an expert: Megatron's default expert_tensor_parallel_size while ranks are left for it; of
        an engine, what ep leaves of tp."""
        if self.style == "megatron":
            return self.tp if self.ep <= self.rest else 1
        return max(1, self.tp // self.ep) if self.style == "engine" else self.tp

    @property
    def expert_shard(self) -> int:
        """Ranks beside ep over which FSDP shards a stack of experts."""
        return max(1, self.shard // self.ep)


def cut_of(placed: Placed) -> Cut:
    """Of a role on its devices. A copy on each rank is an engine without tp."""
    layout, ranks = placed.layout, placed.count
    shard = int(shard_ranks(placed).value)
    if placed.backend == "fsdp":
        return Cut("rows", ranks, layout.tp, 1, layout.ep, shard)
    if placed.backend == "deepspeed":
        whole = placed.role.trainable and (placed.role.engine.zero_stage or 3) < 3
        return Cut("flat", ranks, shard=1 if whole else shard)
    if placed.backend == "megatron":
        stages = stage_edges(stage_layers(placed.model.layers, layout.pp))
        return Cut("megatron", ranks, layout.tp, layout.pp, layout.ep, stages=stages)
    if placed.backend in ENGINES:
        stages = stage_edges(engine_layers(placed.model.layers, layout.pp))
        return Cut("engine", ranks, layout.tp, layout.pp, layout.ep, stages=stages)
    return Cut("engine", ranks)


def engine_layers(count: int, pp: int) -> tuple[int, ...]:
    """Layers of each stage of an engine: those that pp does not divide go to the stages before the last, from the back
    (vLLM's get_pp_indices)."""
    each, over = divmod(count, pp)
    return tuple(each + (pp - 1 - over <= stage < pp - 1) for stage in range(pp))


def stage_edges(layers: tuple[int, ...]) -> Edges:
    return tuple(accumulate(layers, initial=0))


def chunks(size: int, parts: int) -> Edges:
    """torch.chunk's: equal parts rounded up, the last ones smaller or empty."""
    each = -(-size // parts)
    if each * parts == size and each:
        return tuple(range(0, size + 1, each))
    return tuple(min(size, each * part) for part in range(parts + 1))


@lru_cache(maxsize=4096)
def edges(cut: Cut, tensors: Tensors) -> tuple[Edges, Edges, Edges, Edges]:
    """The intervals of each side. Of a flat cut the rows are elements in flat order and there is one column."""
    rows, columns = (0, tensors.rows), (0, tensors.columns)
    layers, experts = outer_edges(cut, tensors)
    if cut.style == "flat":
        return layers, experts, chunks(tensors.rows * tensors.columns, cut.shard), (0, 1)
    tp, inner = cut.tp, 1
    if tensors.rule.experts:
        tp = cut.expert_tp
        if cut.ep > 1:
            inner = cut.expert_shard // _stacked(cut, tensors.experts) if cut.style == "rows" else 1
    if cut.style == "rows" and not (tensors.rule.experts and cut.ep > 1):
        inner = cut.shard
    axis = axis_of(cut, tensors.rule)
    if axis == "kv":
        rows = chunks(tensors.rows, min(tp, tensors.rule.groups))
    elif axis == "column":
        rows = _nested(tensors.rows, tp, inner)
    else:
        rows = chunks(tensors.rows, inner)
        columns = chunks(tensors.columns, tp) if axis == "row" else columns
    return layers, experts, rows, columns


def outer_edges(cut: Cut, tensors: Tensors) -> tuple[Edges, Edges]:
    """The intervals of layers and of experts."""
    experts = (0, tensors.experts)
    if cut.style != "flat" and tensors.rule.experts and cut.ep > 1:
        experts = chunks(tensors.experts, cut.ep * _stacked(cut, tensors.experts))
    return _stages(cut, tensors), experts


@lru_cache(maxsize=1024)
def places(cut: Cut, rule: Rule, experts: int = 1) -> tuple[Place | None, ...]:
    """Of each rank, which interval of each side it holds of tensors with `experts` experts; None if none."""
    match cut.style:
        case "flat":
            return tuple((0, 0, rank % cut.shard, 0) for rank in range(cut.ranks))
        case "rows":
            stacked = _stacked(cut, experts) if rule.experts else 1
            return tuple(_row_place(cut, rule, rank, stacked) for rank in range(cut.ranks))
        case _:
            return tuple(block_place(cut, rule, *_where(cut, rank)) for rank in range(cut.ranks))


@lru_cache(maxsize=1024)
def holders(cut: Cut, rule: Rule, experts: int = 1) -> Mapping[Place, tuple[int, ...]]:
    """Ranks that hold each shard, ascending."""
    found: dict[Place, list[int]] = {}
    for rank, place in enumerate(places(cut, rule, experts)):
        if place is not None:
            found.setdefault(place, []).append(rank)
    return {place: tuple(ranks) for place, ranks in found.items()}


def _row_place(cut: Cut, rule: Rule, rank: int, stacked: int) -> Place:
    """FSDP2: tp ranks are neighbours, then those that share a copy; dim 0 of what tp leaves is cut again. With ep,
    experts are cut by neighbours of one tp rank first, the stack's dim 0 again over the others if there are experts
    enough, else the rows of each (torchtitan and prime-rl: ExpertParallel, then fully_shard)."""
    tp, other = rank % cut.tp, rank // cut.tp
    shard, ranks, expert = other % cut.shard, cut.shard, 0
    if rule.experts and cut.ep > 1:
        ranks = cut.expert_shard
        expert, shard = other % cut.ep, (other // cut.ep) % ranks
        if stacked > 1:
            expert, shard, ranks = expert * stacked + shard, 0, 1
    match axis_of(cut, rule):
        case "column":
            return (0, expert, tp * ranks + shard, 0)
        case "row":
            return (0, expert, shard, tp)
        case _:
            return (0, expert, shard, 0)


def _where(cut: Cut, rank: int) -> tuple[int, int]:
    """Stage of a rank and its number there. Megatron Core: tp ranks are neighbours, then cp and dp, then stages (order
    tp-cp-ep-dp-pp). Engines: tp, then stages, then engines."""
    if cut.style == "megatron":
        return divmod(rank, cut.tp * cut.rest)
    return (rank // cut.tp) % cut.pp, rank % cut.tp + cut.tp * (rank // (cut.tp * cut.pp))


def block_place(cut: Cut, rule: Rule, stage: int, local: int) -> Place | None:
    """Of a rank of Megatron or of an engine, by its stage and its number among the ranks of a stage."""
    tp = local % cut.tp
    ends = {"first": (0,), "last": (cut.pp - 1,), "ends": (0, cut.pp - 1)}
    if stage not in ends.get(rule.place, (stage,)):
        return None
    expert = 0
    if rule.experts:
        tp = local % cut.expert_tp
        expert = (local // cut.expert_tp) % cut.ep
    layer = stage if rule.place == "layers" else 0
    match axis_of(cut, rule):
        case "kv":
            return (layer, expert, tp * rule.groups // cut.tp if cut.tp > rule.groups else tp, 0)
        case "column":
            return (layer, expert, tp, 0)
        case "row":
            return (layer, expert, 0, tp)
        case _:
            return (layer, expert, 0, 0)


def axis_of(cut: Cut, rule: Rule) -> str:
    """Engines repeat key-value heads that are fewer than tp (vLLM's QKVParallelLinear); trainers cut them equally."""
    if rule.axis != "kv":
        return rule.axis
    return "kv" if cut.style == "engine" else "column"


def _stacked(cut: Cut, experts: int) -> int:
    """Ranks beside ep that cut FSDP's stack of experts by whole experts; 1: none, they cut rows."""
    if cut.style != "rows" or cut.ep == 1:
        return 1
    return cut.expert_shard if cut.ep * cut.expert_shard <= experts else 1


def _nested(size: int, outer: int, inner: int) -> Edges:
    """`outer` chunks, each in `inner` chunks."""
    whole = chunks(size, outer)
    if inner == 1:
        return whole
    found = [0]
    for start, end in pairwise(whole):
        found.extend(start + each for each in chunks(end - start, inner)[1:])
    return tuple(found)


def _stages(cut: Cut, tensors: Tensors) -> Edges:
    """Of the layers that have the class, where each stage begins."""
    if cut.pp == 1 or tensors.rule.place != "layers":
        return (0, len(tensors.layers))
    return tuple(bisect_left(tensors.layers, edge) for edge in cut.stages)
