"""Layouts that a backend can run on so many devices: the sizes of each axis, and what rules them out.

Takes a role, the shape of its model and where it stands; gives layouts, the one that cuts least first. Knows no bytes
and no seconds: choices.py says which of them are worth a look.

Sizes: tp every divisor of the devices that the model can be cut by, inside a node; pp powers of two and divisors of the
layers; cp and ep powers of two. Experts are shared out evenly and whole:
  megatron      ep * et divides dp * cp * tp, et the ranks that share one expert: `expert_tensor_parallel`, else tp up
                to an ep of dp * cp, beyond it 1 (Megatron Core, parallel_state.py: the world without pp over ep * et)
  fsdp          ep divides dp * cp (torchtitan's and prime-rl's expert parallel mesh is folded into those ranks)
  vllm          ep is tp of several engines: a multiple of tp that divides dp * tp (--enable-expert-parallel)
  sglang, tensorrt_llm  ep divides tp (--ep-size; moe_expert_parallel_size), which spares nothing: it is not proposed
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from flowrl.graph.graph import Kind, Role
from flowrl.machine.shape import ModelShape
from flowrl.machine.traits import ENGINES, RING_ATTENTION, TRAITS, Traits, context_fault, layout_fault, legal_tp
from flowrl.plan.plan import Layout


@dataclass(frozen=True, slots=True)
class Ground:
    """What of a pool's devices its layouts depend on."""

    count: int
    per_node: int
    """Devices of a whole node."""
    even: int
    """The largest number that divides the pool's devices on every node: groups of tp stand on one node each."""
    linked: int
    """Devices that talk by links: those of a node or of a larger domain."""


def searched_axes(role: Role) -> frozenset[str]:
    """Axes that placement tries of itself."""
    return frozenset(TRAITS[role.backend or ""].searched)


def needed_axes(role: Role, shape: ModelShape) -> frozenset[str]:
    """Those that it tries beside them where it must. A generator has no context to cut, and a denoiser's layers are cut
    by data alone."""
    if shape.head == "denoiser":
        return frozenset()
    left_out = {"cp"} if role.kind is Kind.GENERATOR else set[str]()
    return frozenset(axis for axis in TRAITS[role.backend or ""].by_need if axis not in left_out)


def cuts(role: Role, shape: ModelShape, where: Ground, axes: frozenset[str]) -> list[Layout]:
    """Every legal layout with `axes` beside dp: fewest devices of a copy first, tp before pp before cp before ep."""
    traits = TRAITS[role.backend or ""]
    found = [
        Layout(dp=where.count // (tp * pp * cp), tp=tp, pp=pp, cp=cp, ep=ep)
        for tp in (tensor_sizes(traits, shape, where) if "tp" in axes else (1,))
        for pp in (stage_sizes(traits, shape, where.count // tp, tp) if "pp" in axes else (1,))
        for cp in (context_sizes(traits, shape, where.count // (tp * pp), tp) if "cp" in axes else (1,))
        if _shares_out(role, where.count // (tp * pp))
        for ep in (expert_sizes(role, shape, where.count // (tp * pp), tp) if "ep" in axes else (1,))
    ]
    return sorted(found, key=least_first)


def least_first(layout: Layout) -> tuple[int, ...]:
    return (layout.tp * layout.pp * layout.cp, layout.pp, layout.cp, layout.ep)


def tensor_sizes(traits: Traits, shape: ModelShape, where: Ground) -> tuple[int, ...]:
    """Of tp: groups stand on one node each."""
    legal = legal_tp(traits, shape, where.count, where.per_node)
    return tuple(tp for tp in legal if where.even % tp == 0)


def stage_sizes(traits: Traits, shape: ModelShape, copies: int, tp: int) -> Iterator[int]:
    """Of pp, which divides the `copies` of the devices that tp leaves."""
    for pp in range(1, min(copies, shape.layers) + 1):
        handy = _is_power_of_two(pp) or shape.layers % pp == 0
        if handy and copies % pp == 0 and layout_fault(traits, shape, tp, pp) is None:
            yield pp


def context_sizes(traits: Traits, shape: ModelShape, copies: int, tp: int) -> Iterator[int]:
    """Of cp: by heads, except around a ring."""
    by_heads = traits.backend not in RING_ATTENTION
    for cp in _powers_of_two(copies):
        if copies % cp == 0 and not (by_heads and context_fault(shape, cp, tp) is not None):
            yield cp


def expert_sizes(role: Role, shape: ModelShape, ranks: int, tp: int) -> Iterator[int]:
    """Of ep, with `ranks` of dp and cp."""
    yield 1
    for ep in _powers_of_two(shape.experts):
        if ep > 1 and shape.experts % ep == 0 and _holds_experts(role, ep, ranks, tp):
            yield ep


def _holds_experts(role: Role, ep: int, ranks: int, tp: int) -> bool:
    copies = role.engine.shard_devices
    if copies is not None and copies % ep:
        return False
    if role.backend == "megatron":
        asked = role.engine.expert_tensor_parallel
        inside = min(asked, tp) if asked is not None else tp if ep <= ranks else 1
        return ranks * tp % (ep * inside) == 0
    if role.backend in ENGINES:
        return role.backend == "vllm" and ep > tp and ep % tp == 0 and ranks * tp % ep == 0
    return ranks % ep == 0


def _shares_out(role: Role, ranks: int) -> bool:
    """Whether `ranks` of dp and cp hold whole copies of the states."""
    return ranks % (role.engine.shard_devices or 1) == 0


def _powers_of_two(most: int) -> Iterator[int]:
    size = 1
    while size <= most:
        yield size
        size *= 2


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0
