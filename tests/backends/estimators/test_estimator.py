import numpy as np
import pytest

from flowrl.backends.batch import Batch, Ragged
from flowrl.diag.diagnostic import FlowError
from flowrl.graph.graph import Kind, Op
from flowrl.graph.params import EstimateParams, KlParams
from flowrl.graph.types import Field, Granularity, Unit
from tests.algos import reference
from tests.backends.ranks import call_of, rank_of, sample_rows


def scored(count: int = 8) -> Batch:
    batch = sample_rows(count)
    rewards = np.random.default_rng(1).integers(0, 2, count).astype(np.float32)
    return Batch(batch.ids, batch.prompt_ids, {**batch.columns, "rewards": rewards})


def test_grpo_on_a_batch() -> None:
    batch = scored()
    params = EstimateParams(estimator="grpo", normalize="group")
    result = rank_of(Kind.ESTIMATOR, None).call(call_of("estimate", params, role="advantage"), batch)
    advantages = result.batch.ragged("advantages")
    assert advantages.values.dtype == np.float32
    assert np.array_equal(advantages.lengths, batch.ragged("tokens").lengths)
    rewards, prompts = batch.array("rewards").tolist(), batch.prompt_ids.tolist()
    for row, (got, mask) in enumerate(zip(advantages.rows(), batch.ragged("loss_mask").rows(), strict=True)):
        mean, std = reference.group_stats(rewards, prompts, row)
        assert got[mask] == pytest.approx((rewards[row] - mean) / (std + 1e-6), rel=1e-4)
        assert not got[~mask].any()
    equal = [len({r for r, p in zip(rewards, prompts, strict=True) if p == prompt}) == 1 for prompt in set(prompts)]
    assert result.metrics["zero_spread"] == (pytest.approx(sum(equal) / len(equal)), float(len(equal)))


def test_gae_reads_values_and_kl_and_writes_what_its_op_names() -> None:
    batch = scored()
    params = EstimateParams(estimator="gae", normalize="none", lam=0.9, kl=KlParams(coef=0.1, form="k3"))
    outputs = (
        Field(name="advantages", unit=Unit.TOKEN, dtype="f32"),
        Field(name="returns", unit=Unit.TOKEN, dtype="f32"),
    )
    call = call_of("estimate", params, role="advantage")
    op = Op(
        id="a.estimate", role="a", method="estimate", granularity=Granularity.SAMPLE, params=params, outputs=outputs
    )
    made = rank_of(Kind.ESTIMATOR, None).call(type(call)(op=op, step=1, seed=0), batch).batch
    assert sorted(made.columns) == ["advantages", "returns"]
    for row, mask in enumerate(batch.ragged("loss_mask").rows()):
        column = {n: batch.ragged(n).rows()[row][mask].tolist() for n in ("values", "old_log_probs", "ref_log_probs")}
        pairs = zip(column["old_log_probs"], column["ref_log_probs"], strict=True)
        rewards = [-0.1 * reference.kl("k3", p, q) for p, q in pairs]
        rewards[-1] += float(batch.array("rewards")[row])
        expected = reference.gae(rewards, column["values"], 1.0, 0.9)
        assert made.ragged("advantages").rows()[row][mask].tolist() == pytest.approx(expected, abs=1e-5)


def test_no_rows() -> None:
    call = call_of("estimate", EstimateParams(estimator="grpo"), role="advantage")
    result = rank_of(Kind.ESTIMATOR, None).call(call, scored().select([]))
    assert len(result.batch.ragged("advantages").lengths) == 0


def test_an_estimator_that_is_not_built_is_refused_when_the_rank_is_made() -> None:
    params = EstimateParams(estimator="of_tomorrow")
    op = call_of("estimate", params, role="advantage").op
    with pytest.raises(FlowError) as caught:
        rank_of(Kind.ESTIMATOR, None, ops=(op,))
    assert caught.value.diagnostics[0].code == "FR0801"


def test_turn_columns_go_to_their_turns() -> None:
    """Rows of two turns and of one: gigpo reads flat turn columns, and process rewards may be of turns."""
    ids = np.asarray([0, 1], dtype=np.int64)
    mask = [np.asarray([0, 1, 1, 0, 1], dtype=bool), np.asarray([0, 1], dtype=bool)]
    columns = {
        "loss_mask": Ragged.of(mask, np.bool_),
        "turn_rewards": Ragged.of([np.asarray([1.0, 2.0]), np.asarray([4.0])], np.float32),
        "state_key": Ragged.of([np.asarray([7, 8]), np.asarray([7])], np.int64),
        "rewards": np.asarray([3.0, 4.0], dtype=np.float32),
    }
    batch = Batch(ids, np.zeros(2, dtype=np.int64), columns)
    params = EstimateParams(estimator="gigpo", normalize="none", gamma=0.5, extra={"step_weight": 1.0})
    got = rank_of(Kind.ESTIMATOR, None).call(call_of("estimate", params, role="advantage"), batch)
    # Episodes: 3 and 4 about 3.5. State 7: returns 1 + 0.5 x 2 and 4 about 3; state 8 stands alone.
    assert got.batch.ragged("advantages").values.tolist() == [0.0, -1.5, -1.5, 0.0, -0.5, 0.0, 1.5]
    process = Batch(ids, batch.prompt_ids, {"loss_mask": columns["loss_mask"], "rewards": columns["turn_rewards"]})
    params = EstimateParams(estimator="reinforce", normalize="none", gamma=1.0)
    got = rank_of(Kind.ESTIMATOR, None).call(call_of("estimate", params, role="advantage"), process)
    assert got.batch.ragged("returns").values.tolist() == [0.0, 3.0, 3.0, 0.0, 2.0, 0.0, 4.0]
