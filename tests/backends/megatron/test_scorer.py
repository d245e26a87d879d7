"""Scorers of backend `megatron` against those of `fsdp`, on one rank."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from flowrl.graph.graph import Kind
from flowrl.graph.types import Field, Unit
from tests.backends.ranks import forward, rank_of, sample_rows
from tests.backends.tiny import make_scored, make_tiny
from tests.backends.trainers.with_megatron import needs_megatron

pytestmark = needs_megatron


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("scorers") / "m")


@pytest.fixture(scope="module")
def scalar_folder(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_scored(folder, tmp_path_factory.mktemp("scorers") / "scalar")


def test_ref_log_probs(folder: Path) -> None:
    call, batch = forward(micro_batch_tokens=20, temperature=0.8), sample_rows(6)
    got, expected = (rank_of(Kind.SCORER, folder, name).call(call, batch).batch for name in ("megatron", "fsdp"))
    assert list(got.columns) == list(expected.columns) == ["ref_log_probs"]
    assert np.abs(got.ragged("ref_log_probs").values - expected.ragged("ref_log_probs").values).max() < 1e-5


def test_values(scalar_folder: Path) -> None:
    batch = sample_rows(6)
    got, expected = (
        rank_of(Kind.SCORER, scalar_folder, name, head="scalar").call(forward("values"), batch).batch.ragged("values")
        for name in ("megatron", "fsdp")
    )
    assert expected.values.any()
    assert np.abs(got.values - expected.values).max() < 1e-5


def test_the_likeliest_tokens(folder: Path) -> None:
    call, batch = forward(), sample_rows(6)
    fields = (
        Field(name="ref_log_probs", unit=Unit.TOKEN, dtype="f32"),
        Field(name="ref_top_log_probs", unit=Unit.TOKEN, dtype="f32[3]"),
    )
    call = replace(call, op=structs.replace(call.op, outputs=fields))
    got, expected = (rank_of(Kind.SCORER, folder, name).call(call, batch).batch for name in ("megatron", "fsdp"))
    assert set(got.columns) == {"ref_log_probs", "ref_top_log_probs", "ref_top_tokens"} == set(expected.columns)
    assert np.array_equal(got.ragged("ref_top_tokens").values, expected.ragged("ref_top_tokens").values)
    far = got.ragged("ref_top_log_probs").values - expected.ragged("ref_top_log_probs").values
    assert np.abs(far).max() < 1e-5


def test_weights_can_be_taken_in(folder: Path, tmp_path: Path) -> None:
    other = rank_of(Kind.TRAINER, make_tiny(tmp_path / "other", seed=5), "fsdp")
    manifest = other.manifest()
    buffer = np.zeros(manifest[-1].offset + manifest[-1].nbytes, dtype=np.uint8)
    other.write_weights(buffer)
    scorer, batch = rank_of(Kind.SCORER, folder, "megatron"), sample_rows(3)
    scorer.read_weights(manifest, buffer, 1)
    got = scorer.call(forward(), batch).batch.ragged("ref_log_probs").values
    assert np.abs(got - other.call(forward(), batch).batch.ragged("old_log_probs").values).max() < 1e-5
