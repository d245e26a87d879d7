"""Transports and contexts against the rules they stand for, by brute force."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from flowrl.machine.models import ARCHITECTURES, CARDS
from flowrl.machine.sync import HANDS_OVER, TRANSPORTS, legal_transports, transport_fault
from flowrl.machine.traits import TRAITS, context_fault, legal_cp

DEVICES = tuple(f"node{node}/{place}" for node in range(3) for place in range(2))
ends = st.lists(st.sampled_from(DEVICES), min_size=1, unique=True).map(tuple)


@given(ends, ends, st.booleans())
def test_transports_reach_what_they_say(source: tuple[str, ...], target: tuple[str, ...], on_cpu: bool) -> None:
    """Each receiver's node must have a sender, unless the transport goes across nodes."""
    within = all(any(s[:5] == t[:5] for s in source) for t in target)
    apart = not set(source) & set(target)
    expected = {
        "shared_memory": within,
        "cuda_ipc": within and not on_cpu,
        "nccl": apart and not on_cpu,
        "object_store": True,
        "disk": True,
    }
    for name, transport in TRANSPORTS.items():
        assert (transport_fault(transport, source, target, on_cpu) is None) == expected[name]
    assert set(legal_transports(source, target, on_cpu)) == {name for name, legal in expected.items() if legal}


def test_names_in_the_tables_are_known() -> None:
    assert set(HANDS_OVER) <= set(TRAITS)
    assert all(known <= set(ARCHITECTURES) for known in HANDS_OVER.values())


@given(st.integers(1, 64), st.integers(1, 16), st.integers(1, 64))
def test_context_ranks_hold_whole_heads(kv_heads: int, group: int, cp: int) -> None:
    """Deal out heads: rank r has the attention heads r·n/cp onwards, and needs all key-value heads of their groups. A
    legal size gives every rank as many of both, and no key-value head to some ranks of its group only."""
    heads = kv_heads * group
    shape = replace(CARDS["Qwen/Qwen2.5-14B"], heads=heads, kv_heads=kv_heads)
    each = heads // cp
    ranks = [[head // group for head in range(rank * each, (rank + 1) * each)] for rank in range(cp)]
    needed = [sorted(set(rank)) for rank in ranks]
    if heads % cp:
        assert context_fault(shape, cp) is not None
        return
    whole = kv_heads % cp == 0 and all(len(mine) == kv_heads // cp for mine in needed)
    repeated = cp % kv_heads == 0 and all(len(mine) == 1 for mine in needed)
    assert (context_fault(shape, cp) is None) == (whole or repeated)


def test_legal_sizes_of_a_model_with_forty_heads() -> None:
    assert legal_cp(CARDS["Qwen/Qwen2.5-14B"]) == (1, 2, 4, 8, 40)
    assert legal_cp(CARDS["Qwen/Qwen2.5-14B"], tp=2) == (1, 2, 4, 20)
