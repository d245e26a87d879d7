"""The scorer on the real engine against the scorer on plain transformers, token by token."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from flowrl.backends.contract import Call
from flowrl.diag.diagnostic import FlowError
from flowrl.graph.graph import Kind
from flowrl.graph.types import Field, Unit
from tests.backends.engines import tiny_model
from tests.backends.ranks import forward, rank_of, sample_rows
from tests.backends.tiny import make_tiny

pytestmark = pytest.mark.vllm
K = 4


def asking(top: int | None = K, **params: Any) -> Call:
    call = forward(**params)
    fields = [Field(name="ref_log_probs", unit=Unit.TOKEN, dtype="f32")]
    if top is not None:
        fields.append(Field(name="ref_top_log_probs", unit=Unit.TOKEN, dtype=f"f32[{top}]"))
        fields.append(Field(name="ref_top_tokens", unit=Unit.TOKEN, dtype=f"i32[{top}]"))
    return replace(call, op=structs.replace(call.op, outputs=tuple(fields)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = tiny_model(tied=True).inline or {}
    return make_tiny(tmp_path_factory.mktemp("scored") / "m", **shape)


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[Any]:
    made = rank_of(Kind.SCORER, folder, "vllm", ops=(asking().op,))
    yield made
    made.close()


def test_log_probs_and_the_likeliest_tokens_are_those_of_transformers(engine: Any, folder: Path) -> None:
    batch = sample_rows(7)
    plain = rank_of(Kind.SCORER, folder, "hf")
    got, expected = (rank.call(asking(), batch).batch for rank in (engine, plain))
    assert got.ids.tolist() == batch.ids.tolist()
    assert np.abs(got.ragged("ref_log_probs").values - expected.ragged("ref_log_probs").values).max() < 1e-4
    assert not got.ragged("ref_log_probs").values[~batch.ragged("loss_mask").values].any()
    assert got.ragged("ref_top_tokens").values.shape == (int(batch.ragged("tokens").lengths.sum()), K)
    assert np.array_equal(got.ragged("ref_top_tokens").values, expected.ragged("ref_top_tokens").values)
    assert np.abs(got.ragged("ref_top_log_probs").values - expected.ragged("ref_top_log_probs").values).max() < 1e-4


def test_off_its_device_and_back_it_scores_the_same(engine: Any) -> None:
    batch = sample_rows(3, seed=2)
    before = engine.call(asking(None), batch).batch.ragged("ref_log_probs").values
    engine.offload()
    engine.load()
    assert np.allclose(engine.call(asking(None), batch).batch.ragged("ref_log_probs").values, before, atol=1e-6)


def test_the_longest_row_that_the_flow_allows_fits(engine: Any) -> None:
    batch = sample_rows(2, longest=64)
    assert engine.call(asking(None), batch).batch.ragged("ref_log_probs").values.any()


def test_another_temperature_is_refused(engine: Any) -> None:
    with pytest.raises(FlowError, match=r"FR0801.*\n.*temperature 0.7"):
        engine.call(asking(temperature=0.7), sample_rows(2))
