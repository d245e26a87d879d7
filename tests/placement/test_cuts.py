"""Legal layouts, against an enumeration over all sizes with the engines' rules written again, rank by rank."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl.graph.graph import Kind, Role
from flowrl.graph.params import EngineParams
from flowrl.machine.models import CARDS
from flowrl.machine.shape import ModelShape
from flowrl.machine.traits import TRAITS
from flowrl.placement.cuts import Ground, cuts, needed_axes, searched_axes
from flowrl.plan.plan import Layout

ALL = frozenset({"tp", "pp", "cp", "ep"})
KINDS = {"fsdp": Kind.TRAINER, "deepspeed": Kind.TRAINER, "megatron": Kind.TRAINER, "hf": Kind.SCORER}
SMALL = replace(CARDS["Qwen/Qwen2.5-0.5B"], layers=6, heads=12, kv_heads=4, ffn=48)
SPARSE = replace(SMALL, experts=16, experts_per_token=2, heads=8, kv_heads=2)
SHAPES = (
    SMALL,
    SPARSE,
    replace(SPARSE, experts=12, layers=5),
    replace(SMALL, heads=6, kv_heads=6, ffn=30, layers=7),
    replace(SMALL, heads=8, kv_heads=3, ffn=24, layers=8),
)
FLOORS = ([4], [8], [6], [4, 4], [8, 8], [8, 4], [6, 6, 6], [8, 8, 8, 8], [2, 6])
"""Devices of a pool on each of its nodes."""
PER_NODE = 8


def role(backend: str, **engine: object) -> Role:
    kind = KINDS.get(backend, Kind.GENERATOR)
    return Role(name="r", kind=kind, backend=backend, trainable=kind is Kind.TRAINER, engine=EngineParams(**engine))


def on_one_node(nodes: list[int], tp: int) -> bool:
    """Whether every group of `tp` neighbouring ranks stands on one node, looked at rank by rank."""
    home = [node for node, count in enumerate(nodes) for _ in range(count)]
    return all(len(set(home[at : at + tp])) == 1 for at in range(0, len(home), tp))


def holds_heads(backend: str, shape: ModelShape, tp: int) -> bool:
    """Each rank has whole query heads, and whole key-value heads or a copy of one (vLLM's QKVParallelLinear, Megatron
    Core's num_query_groups)."""
    if shape.heads % tp or shape.ffn % tp:
        return False
    copies = tp > shape.kv_heads and tp % shape.kv_heads == 0 and backend not in ("fsdp", "deepspeed")
    return shape.kv_heads % tp == 0 or copies


def by_heads(shape: ModelShape, tp: int, cp: int) -> bool:
    """Ulysses: an exchange gives each rank whole heads of those that tp left (arXiv:2309.14509)."""
    mine, kv = shape.heads // tp, max(1, shape.kv_heads // tp)
    return mine % cp == 0 and (kv % cp == 0 or cp % kv == 0)


def shares_experts(here: Role, shape: ModelShape, count: int, layout: Layout) -> bool:
    """Whether the ranks of a stage can be dealt into groups that hold every expert once."""
    tp, pp, ep = layout.tp, layout.pp, layout.ep
    if ep == 1:
        return True
    if shape.experts == 0 or shape.experts % ep:
        return False
    stage = count // pp
    match here.backend:
        case "megatron":
            asked = here.engine.expert_tensor_parallel
            together = min(asked, tp) if asked else tp if ep <= stage // tp else 1
            return stage % (ep * together) == 0
        case "fsdp":
            return (stage // tp) % ep == 0
        case "vllm":
            engines = [n for n in range(2, stage // tp + 1) if (stage // tp) % n == 0]
            return any(ep == tp * n for n in engines)
        case _:
            return False


def brute(here: Role, shape: ModelShape, nodes: list[int], axes: frozenset[str]) -> set[tuple[int, ...]]:
    """Every size of every axis up to the devices, asked one by one."""
    count, found = sum(nodes), set[tuple[int, ...]]()
    handy = {n for n in range(1, count + 1) if bin(n).count("1") == 1}
    sizes = range(1, count + 1)
    for tp, pp, cp, ep in product(sizes, sizes, sizes, range(1, max(shape.experts, 1) + 1)):
        used = {name for name, size in (("tp", tp), ("pp", pp), ("cp", cp), ("ep", ep)) if size > 1}
        if not used <= axes or not used <= set(TRAITS[here.backend or ""].axes) or count % (tp * pp * cp):
            continue
        if tp > PER_NODE or not on_one_node(nodes, tp) or not holds_heads(here.backend or "", shape, tp):
            continue
        if pp > shape.layers or (pp not in handy and shape.layers % pp) or cp not in handy or bin(ep).count("1") > 1:
            continue
        if here.backend != "megatron" and not by_heads(shape, tp, cp):
            continue
        copies = here.engine.shard_devices
        if copies and (count // (tp * pp) % copies or (ep > 1 and copies % ep)):
            continue
        if shares_experts(here, shape, count, Layout(dp=count // (tp * pp * cp), tp=tp, pp=pp, cp=cp, ep=ep)):
            found.add((tp, pp, cp, ep))
    return found


def axes_of(here: Role, shape: ModelShape) -> frozenset[str]:
    return searched_axes(here) | needed_axes(here, shape)


def ground(nodes: list[int]) -> Ground:
    even = next(n for n in range(max(nodes), 0, -1) if all(count % n == 0 for count in nodes))
    return Ground(sum(nodes), PER_NODE, even, PER_NODE)


@lru_cache(maxsize=4096)
def known(backend: str, shape: int, floor: int, asked: tuple[tuple[str, int], ...]) -> set[tuple[int, ...]]:
    here = role(backend, **dict(asked))
    return brute(here, SHAPES[shape], FLOORS[floor], axes_of(here, SHAPES[shape]))


@settings(max_examples=60, deadline=None)
@given(
    backend=st.sampled_from(sorted(set(TRAITS) - {"diffusers"})),
    shape=st.integers(0, len(SHAPES) - 1),
    floor=st.integers(0, len(FLOORS) - 1),
    asked=st.sampled_from([(), (("shard_devices", 4),), (("expert_tensor_parallel", 1),)]),
)
def test_legal_layouts_are_those_that_the_engines_take(
    backend: str, shape: int, floor: int, asked: tuple[tuple[str, int], ...]
) -> None:
    here, nodes = role(backend, **dict(asked)), FLOORS[floor]
    found = cuts(here, SHAPES[shape], ground(nodes), axes_of(here, SHAPES[shape]))
    assert {(each.tp, each.pp, each.cp, each.ep) for each in found} == known(backend, shape, floor, asked)
    assert len(found) == len({(each.tp, each.pp, each.cp, each.ep) for each in found})
    assert all(each.devices == sum(nodes) for each in found)
    copies = [each.tp * each.pp * each.cp for each in found]
    assert copies == sorted(copies)


@pytest.mark.parametrize(
    ("backend", "model", "count", "layout"),
    [
        ("megatron", "Qwen/Qwen3-235B-A22B", 256, Layout(dp=16, tp=4, pp=4, ep=8)),
        ("megatron", "meta-llama/Llama-3.1-405B", 512, Layout(dp=4, tp=8, pp=16)),
        ("megatron", "deepseek-ai/DeepSeek-V3", 1024, Layout(dp=8, tp=8, pp=16, ep=8)),
        ("vllm", "meta-llama/Llama-3.1-405B", 512, Layout(dp=32, tp=8, pp=2)),
        ("vllm", "deepseek-ai/DeepSeek-V3", 1024, Layout(dp=32, tp=8, pp=4)),
        ("vllm", "deepseek-ai/DeepSeek-V3", 1024, Layout(dp=128, tp=8, ep=64)),
    ],
)
def test_published_layouts_of_large_models_are_legal(backend: str, model: str, count: int, layout: Layout) -> None:
    """NeMo RL's recipes and vLLM's multi-node serving."""
    here, shape = role(backend), CARDS[model]
    assert layout in cuts(here, shape, Ground(count, 8, 8, 8), axes_of(here, shape))


def test_an_axis_that_is_not_asked_for_stays_whole() -> None:
    here = role("megatron")
    assert {(each.cp, each.ep) for each in cuts(here, SPARSE, ground([8, 8]), frozenset({"tp", "pp"}))} == {(1, 1)}
    assert [each.dp for each in cuts(here, SPARSE, ground([8, 8]), frozenset())] == [16]
    assert ALL >= axes_of(here, SPARSE) > searched_axes(here)
