"""Which rank takes which rows: the bound of longest-first, whole groups, and what an update may not split."""

from __future__ import annotations

from itertools import product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl.backends.batch import SAMPLE_ID_BITS
from flowrl.graph.graph import Graph, Op
from flowrl.graph.params import UpdateParams
from flowrl.graph.types import Granularity
from flowrl.plan.plan import Layout
from flowrl.program.program import Rows
from flowrl.runtime.launchers.contract import BoundInput, Part, Record
from flowrl.runtime.rows import (
    balance,
    ids_by_rank,
    keeps_groups_whole,
    prompts_of,
    replicas,
    rows_to_take,
    sample_spaces,
)
from tests.runtime.plans import data_op, generate_op, graph_of, grpo_graph, make_op, reads


@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.integers(1, 3))
@settings(max_examples=60)
def test_the_longest_share_is_within_four_thirds_of_the_best(lengths: list[int], ranks: int) -> None:
    """Graham 1969: at most 4/3 - 1/(3m) of the optimum, here found by trying every assignment."""
    ids, tokens = np.arange(len(lengths)), np.asarray(lengths)
    shares = balance(ids, ids, tokens, ranks)
    longest = max(int(tokens[share].sum()) for share in shares)
    best = min(
        max(sum(n for n, r in zip(lengths, ranks_of, strict=True) if r == rank) for rank in range(ranks))
        for ranks_of in product(range(ranks), repeat=len(lengths))
    )
    assert longest <= (4 / 3 - 1 / (3 * ranks)) * best + 1e-9
    assert sorted(i for share in shares for i in share.tolist()) == ids.tolist()


@given(st.lists(st.integers(1, 9), min_size=1, max_size=20), st.integers(1, 4))
def test_groups_stay_whole_and_ids_ascend(lengths: list[int], ranks: int) -> None:
    ids = np.arange(len(lengths))
    groups = ids // 3
    shares = balance(ids, groups, np.asarray(lengths), ranks)
    seen: dict[int, int] = {}
    for rank, share in enumerate(shares):
        assert share.tolist() == sorted(share.tolist())
        for group in groups[share].tolist():
            assert seen.setdefault(group, rank) == rank


def test_ranks_of_one_replica_take_the_same_rows() -> None:
    ids = np.arange(6)
    shares = ids_by_rank(_update("ppo"), Layout(dp=2, tp=2), ids, ids, np.asarray([9, 1, 1, 1, 1, 1]))
    assert [share.tolist() for share in shares] == [[0], [0], [1, 2, 3, 4, 5], [1, 2, 3, 4, 5]]


def test_stages_of_megatron_are_counted_last() -> None:
    """Megatron Core's order tp-cp-ep-dp-pp: ranks 0 to 3 are the first stage of two replicas of two tp ranks."""
    layout = Layout(tp=2, dp=2, pp=2)
    assert replicas(layout, "megatron") == (0, 0, 1, 1, 0, 0, 1, 1)
    assert replicas(layout) == (0, 0, 0, 0, 1, 1, 1, 1)
    assert replicas(Layout(dp=3, tp=2), "megatron") == replicas(Layout(dp=3, tp=2)) == (0, 0, 1, 1, 2, 2)


def test_only_what_needs_a_whole_group_keeps_it_whole() -> None:
    assert keeps_groups_whole(make_op("advantage.estimate", Granularity.GROUP, (), ()))
    assert keeps_groups_whole(_update("dpo"))
    assert not keeps_groups_whole(_update("ppo"))


def test_rows_of_a_minibatch_are_counted_in_prompts() -> None:
    assert prompts_of(Rows(start=1, stop=3), [10, 12, 13, 19]) == {12, 13}
    assert prompts_of(Rows(), [10, 12]) == {10, 12}


def test_rows_to_take_are_those_that_every_input_by_id_has() -> None:
    ids = np.asarray([(p << SAMPLE_ID_BITS) + k for p in (4, 5) for k in (0, 1)])
    tokens = Part(None, ids, ids >> SAMPLE_ID_BITS, np.asarray([3, 1, 4, 1]))
    dropped = Part(None, ids[1:], ids[1:] >> SAMPLE_ID_BITS)
    prompts = Part(None, np.asarray([4, 5]), np.asarray([4, 5]))
    inputs = (
        BoundInput("rewards", "rewards", Record("reward.score", 1, (dropped,))),
        BoundInput("tokens", "tokens", Record("actor_infer.generate", 1, (tokens,))),
        BoundInput("answer", "answer", Record("data.train", 1, (prompts,)), by_prompt=True),
    )
    taken, prompt_ids, lengths = rows_to_take(inputs, None)
    assert (taken.tolist(), prompt_ids.tolist(), lengths.tolist()) == (ids[1:].tolist(), [4, 5, 5], [1, 4, 1])
    assert rows_to_take(inputs, {4})[0].tolist() == [ids[1]]


def test_each_generate_call_opens_a_space_and_a_reader_works_in_its_own() -> None:
    """ReMax reads the rewards of a greedy call beside its own (LANGUAGE.md, "Binding" 3)."""
    spaces = sample_spaces(_remax())
    assert spaces["data.train"] is None
    assert spaces["reward.score@greedy"] == "actor_infer.generate@greedy"
    assert spaces["advantage.estimate"] == "actor_infer.generate"
    validation = sample_spaces(grpo_graph())
    assert validation["reward.score@val"] == "actor_infer.generate@val"
    assert validation["actor_train.update"] == "actor_infer.generate"


def _remax() -> Graph:
    plain = grpo_graph(val_every=None)
    ops: list[Op] = [
        data_op("data.train", 4),
        generate_op("@greedy", "data.train", 1),
        generate_op("", "data.train", 1),
    ]
    for label in ("@greedy", ""):
        inputs = reads(f"actor_infer.generate{label}", "response")
        ops.append(make_op(f"reward.score{label}", Granularity.SAMPLE, inputs, ("rewards",)))
    inputs = (*reads("reward.score@greedy", "baseline_rewards"), *reads("reward.score", "rewards"))
    ops.append(make_op("advantage.estimate", Granularity.SAMPLE, inputs, ("advantages",)))
    return graph_of("remax", ops, (), plain.step, 0)


def _update(loss: str) -> Op:
    return make_op("actor_train.update", Granularity.MINIBATCH, (), (), params=UpdateParams(loss=loss))
