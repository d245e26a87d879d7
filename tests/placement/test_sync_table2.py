"""HybridFlow's Table 2 (arXiv:2409.19256): communication volume per device, peak parameter memory and redundancy of the
transition between training p-t-d and generation pg-tg, as the overlap plan counts them."""

from __future__ import annotations

from fractions import Fraction

import pytest

from flowrl.machine.models import CARDS
from flowrl.placement.sync.cuts import Cut, stage_edges
from flowrl.placement.sync.tensors import COLUMN, ROW, Tensors, tensors_of
from flowrl.placement.sync.volumes import Volume, strided, volumes

LAYERS = 16
TENSORS = (Tensors("up", COLUMN, tuple(range(LAYERS)), 96, 128), Tensors("down", ROW, tuple(range(LAYERS)), 128, 96))
"""Cut everywhere, as the table's M is."""

SETTINGS = [
    # p, t, d, pg, tg; the first four are those of section 8.4 (7B, 13B, 34B, 70B on their nodes)
    (1, 8, 2, 1, 2),
    (1, 8, 4, 1, 4),
    (4, 8, 1, 1, 8),
    (8, 8, 2, 1, 8),
    (1, 4, 2, 1, 2),
    (2, 4, 3, 1, 2),
    (2, 4, 2, 2, 1),
    (4, 2, 2, 2, 2),
    (8, 8, 1, 2, 4),
    (2, 8, 2, 2, 8),
]


def megatron(p: int, t: int, d: int, layers: int = LAYERS) -> Cut:
    stages = stage_edges((layers // p,) * p) if p > 1 else ()
    return Cut("megatron", p * t * d, t, p, stages=stages)


def engine(ranks: int, pg: int, tg: int) -> Cut:
    return Cut("engine", ranks, tg, pg, stages=stage_edges((LAYERS // pg,) * pg) if pg > 1 else ())


def shares(volume: Volume, rank: int, whole: int) -> tuple[Fraction, ...]:
    return tuple(Fraction(each[rank], whole) for each in (volume.received, volume.peak, volume.redundant))


@pytest.mark.parametrize(("p", "t", "d", "pg", "tg"), SETTINGS)
def test_table_2(p: int, t: int, d: int, pg: int, tg: int) -> None:
    whole, ranks = sum(each.elements for each in TENSORS), p * t * d
    to = engine(ranks, pg, tg)
    chat = volumes(TENSORS, Cut("flat", ranks, shard=ranks), to, "gather")
    vanilla = volumes(TENSORS, megatron(p, t, d), to, "gather")
    hybrid = volumes(TENSORS, megatron(p, t, d), to, "shards", strided(megatron(p, t, d), tg, pg))
    table = {
        "DS-Chat": (Fraction(t * p * d - 1, t * p * d), Fraction(1), Fraction(1, t * p * d)),
        "HybridFlow-V": (Fraction(t * p - 1, t * p), Fraction(1), Fraction(1, t * p)),
        "HybridFlow": (Fraction(t * p - tg * pg, tg * pg * t * p), Fraction(1, tg * pg), Fraction(0)),
    }
    for name, found in (("DS-Chat", chat), ("HybridFlow-V", vanilla), ("HybridFlow", hybrid)):
        assert {shares(found, rank, whole) for rank in range(ranks)} == {table[name]}, name


def test_vanilla_grouping_keeps_what_generation_cannot_use() -> None:
    """Figure 8 of the paper: training 1-4-2, generation 1-2: of each four ranks the second and third hold a shard of
    training beside one of generation that has none of it, the first and the last reuse theirs."""
    train, to = megatron(1, 4, 2), engine(8, 1, 2)
    whole = sum(each.elements for each in TENSORS)
    vanilla, hybrid = (volumes(TENSORS, train, to, "shards", order) for order in (None, strided(train, 2, 1)))
    quarter = whole // 4
    assert vanilla.redundant == (0, quarter, quarter, 0) * 2
    assert hybrid.redundant == (0,) * 8
    assert max(hybrid.peak) < max(vanilla.peak)
    assert sum(hybrid.received) < sum(vanilla.received)


def test_strided_groups_are_those_of_the_paper() -> None:
    """Figure 8(b): generation groups of training 1-4-2 with tg 2 are ranks 0 and 2, 1 and 3, and so on."""
    assert strided(megatron(1, 4, 2), 2, 1) == (0, 2, 1, 3, 4, 6, 5, 7)


def test_a_model_with_norms_comes_near_the_table() -> None:
    """Llama-2-7B on 1-8-2 to tg 2: norms are not cut, so a little less is received than the table says."""
    tensors = tensors_of(CARDS["meta-llama/Llama-2-7b-hf"])
    train = Cut("megatron", 16, 8)
    found = volumes(tensors, train, Cut("engine", 16, 2), "shards", strided(train, 2, 1))
    whole = sum(each.elements for each in tensors)
    assert max(found.received) / whole == pytest.approx((8 - 2) / (2 * 8), rel=1e-3)
    assert max(found.redundant) == 0
