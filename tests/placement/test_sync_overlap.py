"""Weight sync: bytes per link against a count of elements, conservation, HybridFlow's Table 2, cards' tensors."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from flowrl.machine.models import CARDS
from flowrl.machine.shape import ModelShape
from flowrl.placement.sync.cuts import Cut
from flowrl.placement.sync.overlap import Ends, held, traffic
from flowrl.placement.sync.tensors import tensors_of
from tests.placement.shard_elements import Count, elements

TRIPLES = 200


def tiny_shape(pick: random.Random) -> ModelShape:
    """A model of some hundred weights: heads, experts, biases, tied or not."""
    head_dim, kv_heads = pick.choice((1, 2)), pick.choice((1, 2, 4))
    experts = pick.choice((0, 0, 4, 8))
    layers = pick.randint(1, 5)
    return ModelShape(
        name="tiny",
        origin="test",
        architecture="qwen3",
        layers=layers,
        hidden=pick.choice((4, 6, 8)),
        heads=kv_heads * pick.choice((1, 2)),
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=pick.choice((4, 8, 12)),
        vocab=pick.choice((8, 11, 16)),
        max_positions=8,
        tied=pick.random() < 0.5,
        qkv_bias=pick.random() < 0.5,
        qk_norm=pick.random() < 0.5,
        experts=experts,
        experts_per_token=2 if experts else 0,
        dense_layers=pick.randint(0, layers - 1) if experts else 0,
        dense_ffn=6 if experts else 0,
        shared_ffn=pick.choice((0, 4)) if experts else 0,
    )


def stages(pick: random.Random, layers: int, pp: int) -> tuple[int, ...]:
    """Uneven ones, each with a layer."""
    between = sorted(pick.sample(range(1, layers), pp - 1))
    return (0, *between, layers)


def cut(pick: random.Random, style: str, shape: ModelShape) -> Cut:
    tp = pick.choice((1, 2, 4)) if style != "flat" else 1
    pp = pick.choice([each for each in (1, 2, 3) if each <= shape.layers]) if style in ("megatron", "engine") else 1
    rest = pick.choice((1, 2, 3, 4))
    ep = 1
    if shape.experts:
        most = tp * rest if style in ("megatron", "engine") else rest
        ep = pick.choice([each for each in (1, 2, 4, 8) if most % each == 0 and each <= shape.experts])
    shard = rest
    if style in ("rows", "flat"):
        shard = pick.choice([each for each in range(1, rest + 1) if rest % each == 0 and each % ep == 0])
    if style == "engine" and ep > 1 and tp % ep and ep % tp:
        ep = 1
    found = stages(pick, shape.layers, pp) if pp > 1 else ()
    return Cut(style, tp * pp * rest, tp, pp, ep, shard, found)


def ends(pick: random.Random, source: Cut, target: Cut) -> Ends:
    """Both on the same devices, apart, or overlapping in part, in nodes of 1 to 4; sometimes links join nodes."""
    first = pick.choice((0, 0, source.ranks, source.ranks // 2))
    devices = list(range(max(source.ranks, first + target.ranks)))
    size, joined = pick.choice((1, 2, 3, 4, 8)), pick.choice((1, 1, 2))
    nodes = tuple(device // size for device in devices)
    receivers = devices[first : first + target.ranks]
    if pick.random() < 0.2:
        pick.shuffle(receivers)
    return Ends(tuple(devices[: source.ranks]), tuple(receivers), tuple(node // joined for node in nodes), nodes)


def triples() -> Iterator[tuple[Cut, Cut, ModelShape, Ends]]:
    pick = random.Random(4)
    for turn in range(TRIPLES):
        shape = tiny_shape(pick)
        source = cut(pick, ("rows", "flat", "megatron", "engine")[turn % 4], shape)
        target = cut(pick, "flat" if turn % 50 == 7 else "engine", shape)
        yield source, target, shape, ends(pick, source, target)


def test_bytes_per_link_are_a_count_of_elements() -> None:
    """And each element arrives once where it is needed; all ranks of a cut together hold the whole model."""
    seen: set[str] = set()
    for source, target, shape, where in triples():
        tensors = tensors_of(shape)
        have = [set().union(*(elements(source, rank, each) for each in tensors)) for rank in range(source.ranks)]
        want = [set().union(*(elements(target, rank, each) for each in tensors)) for rank in range(target.ranks)]
        counted = Count(have, want, where.source, where.target, where.domains, where.nodes).run()
        found = traffic(tensors, source, target, where)
        told = f"{source} => {target} on {where} of {shape}"
        assert list(found.local) == counted.local, told
        assert list(found.link_in) == counted.link_in, told
        assert list(found.network_in) == counted.network_in, told
        assert list(found.link_out) == counted.link_out, told
        assert list(found.network_out) == counted.network_out, told
        assert dict(found.node_in) == +counted.node_in, told
        assert dict(found.node_out) == +counted.node_out, told
        assert list(held(tensors, source)) == [len(each) for each in have], told
        assert all(got == dict.fromkeys(need, 1) for got, need in zip(counted.arrived, want, strict=True)), told
        assert list(found.needed) == [len(each) for each in want], told
        everything = sum(each.elements for each in tensors)
        assert len(set().union(*have)) == len(set().union(*want)) == everything, told
        seen |= {name for name in ("local", "link_in", "network_in") if sum(getattr(found, name))}
    assert seen == {"local", "link_in", "network_in"}


@pytest.mark.parametrize("name", sorted(CARDS)[::3])
def test_tensors_add_up_to_the_parameters_of_a_card(name: str) -> None:
    assert sum(each.elements for each in tensors_of(CARDS[name])) == CARDS[name].parameters
