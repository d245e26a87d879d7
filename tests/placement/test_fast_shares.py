"""What ranks hold, counted by kinds of ranks, is what is counted rank by rank."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl.placement.memory.stages import stage_layers
from flowrl.placement.sync.cuts import Cut, engine_layers, stage_edges
from flowrl.placement.sync.overlap import held
from flowrl.placement.sync.shares import Shares, shares_of
from flowrl.placement.sync.tensors import tensors_of
from tests.placement.test_memory_traces import CARDS

SHAPES = [
    CARDS[name]
    for name in (
        "Qwen/Qwen2.5-0.5B",
        "Qwen/Qwen2.5-7B",
        "meta-llama/Llama-3.1-70B",
        "Qwen/Qwen3-30B-A3B",
        "deepseek-ai/DeepSeek-V3",
    )
]


@st.composite
def cuts(draw: st.DrawFn) -> tuple[int, Cut]:
    """A model by number and a cut of it, legal or not: counting asks no more than whole numbers of ranks."""
    number = draw(st.integers(0, len(SHAPES) - 1))
    layers, experts = SHAPES[number].layers, max(1, SHAPES[number].experts)
    style = draw(st.sampled_from(("rows", "flat", "megatron", "engine")))
    tp = draw(st.sampled_from((1, 2, 4, 8)))
    if style == "flat":
        return number, Cut(style, draw(st.integers(1, 96)), shard=draw(st.integers(1, 24)))
    if style == "rows":
        shard, copies = draw(st.integers(1, 70)), draw(st.integers(1, 3))
        ep = draw(st.sampled_from([each for each in (1, 2, 4) if shard * copies % each == 0 and shard % each == 0]))
        return number, Cut(style, tp * shard * copies, tp, 1, ep if experts > 1 else 1, shard)
    pp, rest = draw(st.integers(1, 4)), draw(st.integers(1, 12))
    ep = draw(st.sampled_from([each for each in (1, 2, 4, 8, 16) if experts % each == 0 and tp * rest % each == 0]))
    stages = stage_edges((stage_layers if style == "megatron" else engine_layers)(layers, pp))
    return number, Cut(style, tp * pp * rest, tp, pp, ep, stages=stages)


@settings(max_examples=400, deadline=None)
@given(cuts())
def test_the_least_the_most_and_all(drawn: tuple[int, Cut]) -> None:
    number, cut = drawn
    tensors = tensors_of(SHAPES[number])
    each = held(tensors, cut)
    assert shares_of(tensors, cut) == Shares(min(each), max(each), sum(each))
