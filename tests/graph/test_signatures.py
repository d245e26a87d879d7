"""Signatures against LANGUAGE's table and its sentence on what losses read."""

from __future__ import annotations

import pytest

from flowrl.graph.graph import Input, Kind
from flowrl.graph.params import CorrectionParams, EstimateParams, KlParams, UpdateParams
from flowrl.graph.signatures import (
    ESTIMATORS,
    FIELDS,
    LOSSES,
    OPS,
    estimate_granularity,
    estimate_reads,
    makers,
    methods,
    scorer_writes,
    update_reads,
)
from flowrl.graph.types import Granularity, Unit, dtypes_agree


def _names(inputs: tuple[Input, ...]) -> list[str]:
    return [i.slot for i in inputs]


@pytest.mark.parametrize(
    ("loss", "more"),
    [
        *((loss, ["advantages", "old_log_probs"]) for loss in ("ppo", "gspo", "cispo", "topr", "reinforce")),
        ("value", ["values", "returns"]),
        ("dpo", ["pair_sign", "ref_log_probs"]),
        ("distill", ["ref_top_log_probs", "ref_top_tokens"]),
        ("bradley_terry", ["pair_sign"]),
    ],
)
def test_what_losses_read_beyond_tokens_and_mask(loss: str, more: list[str]) -> None:
    assert _names(update_reads(UpdateParams(loss=loss))) == ["tokens", "loss_mask", *more]


def test_parameters_add_to_what_a_loss_reads() -> None:
    assert _names(update_reads(UpdateParams(loss="sft"))) == ["prompt", "response"]
    none = UpdateParams(loss="reinforce", old_log_probs="none")
    assert _names(update_reads(none)) == ["tokens", "loss_mask", "advantages"]
    corrected = UpdateParams(loss="ppo", kl=KlParams(coef=0.1), corrections=(CorrectionParams(name="tis"),))
    assert _names(update_reads(corrected))[3:] == ["old_log_probs", "ref_log_probs", "rollout_log_probs"]
    assert "ref_log_probs" not in _names(update_reads(UpdateParams(loss="ppo", kl=KlParams(coef=0.0))))


def test_kl_in_the_reward_reads_both_log_probs() -> None:
    plain = EstimateParams(estimator="grpo")
    assert _names(estimate_reads(plain)) == ["rewards", "loss_mask"]
    with_kl = EstimateParams(estimator="gae", kl=KlParams(coef=0.1))
    expected = {"rewards", "values", "loss_mask", "old_log_probs", "ref_log_probs"}
    assert set(_names(estimate_reads(with_kl))) == expected


def test_process_rewards_go_to_estimators_by_token_only() -> None:
    finest = {name: estimate_reads(EstimateParams(estimator=name))[0].unit for name in ESTIMATORS}
    assert finest["gae"] is Unit.TOKEN
    assert finest["grpo"] is Unit.SAMPLE


@pytest.mark.parametrize(
    ("estimator", "normalize", "expected"),
    [
        ("grpo", "group", Granularity.GROUP),
        ("grpo", "batch", Granularity.STEP),
        ("gae", "none", Granularity.SAMPLE),
        ("gae", "group", Granularity.GROUP),
        ("gae", "batch", Granularity.STEP),
        ("rloo", "none", Granularity.GROUP),
    ],
)
def test_granularity_of_estimators(estimator: str, normalize: str, expected: Granularity) -> None:
    assert estimate_granularity(EstimateParams(estimator=estimator, normalize=normalize)) is expected


def test_ops_of_kinds_by_head() -> None:
    assert methods(Kind.TRAINER, "lm") == ("log_probs", "update")
    assert methods(Kind.TRAINER, "scalar") == ("values", "update")
    assert methods(Kind.SCORER, "scalar") == ("values",)
    assert methods(Kind.REWARD, None) == ("score", "compare")


def test_every_field_that_is_read_is_made_by_someone_or_chosen() -> None:
    read = {i.slot for s in OPS for i in s.reads}
    read |= {name for loss in LOSSES.values() for name in loss.reads}
    read |= {name for estimator in ESTIMATORS.values() for name in estimator.reads}
    of_data = {"prompt", "images", "response", "pair_sign"}
    unmade = {name for name in read - of_data if not makers(name)}
    assert unmade == {"baseline_rewards"}
    assert read <= set(FIELDS)


def test_top_k_of_a_scorer() -> None:
    assert [f.dtype for f in scorer_writes("log_probs", 8)] == ["f32", "f32[8]", "i32[8]"]
    assert [f.name for f in scorer_writes("log_probs", None)] == ["ref_log_probs"]


def test_dims_are_free_and_element_types_are_not() -> None:
    assert dtypes_agree("f32[8]", "f32[K]")
    assert not dtypes_agree("f32[8]", "i32[K]")
    assert not dtypes_agree("f32", "f32[K]")
    assert dtypes_agree("json", "f32")
    assert dtypes_agree("str", None)
