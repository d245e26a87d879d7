from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec import structs
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

from flowrl.backends.contract import Call
from flowrl.diag.diagnostic import FlowError
from flowrl.graph.graph import Kind
from flowrl.graph.params import ScoreParams
from flowrl.graph.types import Field, Unit
from tests.backends.ranks import call_of, forward, rank_of, sample_rows
from tests.backends.tiny import make_scored, make_tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("scorers") / "m")


@pytest.fixture(scope="module")
def scalar_folder(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_scored(folder, tmp_path_factory.mktemp("scorers") / "scalar")


def asking(top: int, **params: int) -> Call:
    """log_probs of a scorer with `top_k`."""
    call = forward(**params)
    types = {"ref_log_probs": "f32", "ref_top_log_probs": f"f32[{top}]", "ref_top_tokens": f"i32[{top}]"}
    outputs = tuple(Field(name=name, unit=Unit.TOKEN, dtype=dtype) for name, dtype in types.items())
    return replace(call, op=structs.replace(call.op, outputs=outputs))


def test_ref_log_probs_are_the_trainers(folder: Path) -> None:
    batch = sample_rows(6)
    scorer, trainer = rank_of(Kind.SCORER, folder, "fsdp"), rank_of(Kind.TRAINER, folder, "fsdp")
    got = scorer.call(forward(micro_batch_tokens=20, temperature=0.8), batch).batch
    expected = trainer.call(forward(micro_batch_tokens=20, temperature=0.8), batch).batch
    assert list(got.columns) == ["ref_log_probs"]
    assert np.array_equal(got.ragged("ref_log_probs").values, expected.ragged("old_log_probs").values)


def test_the_plain_copy_scores_as_the_shards_do(folder: Path) -> None:
    batch = sample_rows(6)
    asked = asking(3)
    plain, shards = (rank_of(Kind.SCORER, folder, name).call(asked, batch).batch for name in ("hf", "fsdp"))
    assert set(plain.columns) == {"ref_log_probs", "ref_top_log_probs", "ref_top_tokens"}
    for name in plain.columns:
        assert np.array_equal(plain.ragged(name).values, shards.ragged(name).values), name
    half = rank_of(Kind.SCORER, folder, "hf", dtype="bfloat16")
    near = half.call(asked, batch).batch.ragged("ref_log_probs").values
    assert np.abs(near - plain.ragged("ref_log_probs").values).max() < 0.1


def test_the_likeliest_tokens_are_those_of_a_plain_forward(folder: Path) -> None:
    batch = sample_rows(5)
    got = rank_of(Kind.SCORER, folder, "fsdp").call(asking(4, micro_batch_tokens=20), batch).batch
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    likely, ids = got.ragged("ref_top_log_probs").rows(), got.ragged("ref_top_tokens").rows()
    for row, (tokens, mask) in enumerate(
        zip(batch.ragged("tokens").rows(), batch.ragged("loss_mask").rows(), strict=True)
    ):
        with torch.no_grad():
            logs = model(torch.tensor([tokens.tolist()])).logits[0].log_softmax(-1)
        for place in np.flatnonzero(mask):
            best = logs[place - 1].topk(4)
            assert ids[row][place].tolist() == best.indices.tolist()
            assert likely[row][place] == pytest.approx(best.values.numpy(), abs=1e-5)
        assert not likely[row][~mask].any()


def test_values_are_the_trainers(scalar_folder: Path) -> None:
    batch = sample_rows(6)
    ranks = [rank_of(kind, scalar_folder, "fsdp", head="scalar") for kind in (Kind.SCORER, Kind.TRAINER)]
    got, expected = (rank.call(forward("values"), batch).batch.ragged("values").values for rank in ranks)
    assert got.any()
    assert np.array_equal(got, expected)


def test_a_reward_model_scores_the_last_token(scalar_folder: Path) -> None:
    batch = sample_rows(9)
    reward = rank_of(Kind.REWARD, scalar_folder, "fsdp", head="scalar")
    result = reward.call(call_of("score", ScoreParams(flavour="model"), role="reward"), batch)
    model = AutoModelForTokenClassification.from_pretrained(scalar_folder).eval()
    for got, row in zip(result.batch.array("rewards"), batch.ragged("tokens").rows(), strict=True):
        with torch.no_grad():
            assert got == pytest.approx(model(torch.tensor([row.tolist()])).logits[0, -1, 0].item(), abs=1e-5)
    assert result.metrics["rewards"] == (pytest.approx(float(result.batch.array("rewards").mean())), 9.0)
    assert len(reward.call(call_of("score", ScoreParams(flavour="model")), batch.select([])).batch) == 0


def test_a_reward_model_needs_a_scalar_head(folder: Path) -> None:
    with pytest.raises(FlowError) as caught:
        rank_of(Kind.REWARD, folder, "fsdp")
    assert caught.value.diagnostics[0].code == "FR0801"
