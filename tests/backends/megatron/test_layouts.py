"""Four ranks of backend `megatron` in each layout against one rank of `fsdp` on the same rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowrl.backends.trainers.fsdp.export import export_checkpoint
from flowrl.graph.graph import Kind
from tests.backends.megatron.four_ranks import LAYOUTS, all_four, replica_of, rows_of, speaks, train
from tests.backends.ranks import forward, rank_of
from tests.backends.tiny import make_tiny
from tests.backends.trainers.two_ranks import ADAM, BUDGET, SGD, weights_of
from tests.backends.trainers.with_megatron import needs_megatron

pytestmark = [pytest.mark.slow, needs_megatron]
CALL = forward(micro_batch_tokens=BUDGET)
Ranks = list[dict[str, Any]]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders; `one rank` holds the checkpoint of one rank of `fsdp` after three updates with Adam. pp cuts three
    layers unevenly; 99 tokens are an odd vocabulary; the heads have one key for both, which two tp ranks share."""
    root = tmp_path_factory.mktemp("four")
    (root / "one rank").mkdir()
    folders = {
        "root": root,
        "tied": make_tiny(root / "tied", layers=3),
        "untied": make_tiny(root / "untied", tie_embeddings=False),
        "one rank": root / "one rank",
    }
    single = rank_of(Kind.TRAINER, folders["tied"], "fsdp", optimizer=ADAM)
    train(single, None, 1, steps=3)
    single.save(folders["one rank"])
    return folders


@pytest.fixture(scope="module")
def every(place: dict[str, Path]) -> Ranks:
    return all_four(place)


@pytest.fixture(params=LAYOUTS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def found(every: Ranks, name: str) -> Ranks:
    return [made[name] for made in every]


def single(place: dict[str, Path], model: str, **changes: Any) -> Any:
    return rank_of(Kind.TRAINER, place[model], "fsdp", **({"optimizer": SGD} | changes))


def column(found: Ranks, name: str, key: str, field: str) -> Any:
    """The rows of all replicas, in order; ranks that do not speak for theirs gave none."""
    layout, given = LAYOUTS[name], {}
    for rank, made in enumerate(found):
        assert (made[key] is not None) == speaks(rank, layout)
        if made[key] is not None:
            given[replica_of(rank, layout)] = made[key][field].values
    return np.concatenate([given[replica] for replica in range(layout.dp)])


def whole(found: Ranks, key: str) -> Any:
    """The buffer that all ranks have filled together; no byte is written by two of them."""
    parts = [made[key] for made in found]
    assert not (np.stack([part != 0 for part in parts]).sum(axis=0) > 1).any()
    return np.sum(parts, axis=0, dtype=np.uint8)


def assert_same(found: Ranks, key: str, expected: list[dict[str, float]], rel: float = 1e-5) -> None:
    """Every rank reports the metrics of the whole minibatch, and they are those of one rank."""
    for made in found:
        assert made[key] == found[0][key]
        for got, one in zip(made[key], expected, strict=True):
            assert set(got) == set(one)
            for metric, value in one.items():
                assert got[metric] == pytest.approx(value, rel=rel, abs=1e-6), metric


@pytest.mark.parametrize("model", ["tied", "untied"])
def test_log_probs_losses_and_weights_of_sgd(place: dict[str, Path], found: Ranks, name: str, model: str) -> None:
    one = single(place, model)
    before = one.call(CALL, rows_of(None, 1, 1)).batch
    for field in ("old_log_probs", "entropy"):
        expected = before.ragged(field).values
        assert np.abs(column(found, name, f"{model} log_probs", field) - expected).max() < 1e-5
    assert all(made[f"{model} manifest"] == one.manifest() for made in found)
    start = weights_of(one).view(np.float32)
    assert_same(found, f"{model} steps", train(one, None, 1))
    moved = weights_of(one).view(np.float32)
    assert np.linalg.norm(moved - start) > 0.01 * np.linalg.norm(start)
    assert np.abs(whole(found, f"{model} weights").view(np.float32) - moved).max() < 1e-5


def test_the_first_step_of_adam(place: dict[str, Path], found: Ranks) -> None:
    """Only the first: Adam divides by the gradient's size and so amplifies the rounding of gradients near zero."""
    assert_same(found, "adam steps", train(single(place, "tied", optimizer=ADAM), None, 1, steps=1))


def test_the_checkpoint_of_one_rank_of_fsdp(place: dict[str, Path], found: Ranks) -> None:
    one = single(place, "tied", optimizer=ADAM)
    one.restore(place["one rank"])
    assert np.array_equal(whole(found, "restored weights"), weights_of(one))
    assert_same(found, "restored steps", train(one, None, 1, first=3, steps=1))


def test_going_on_in_the_same_layout_is_bit_equal(found: Ranks) -> None:
    for made in found:
        assert made["again steps"] == made["saved steps"]
        assert made["again same"]


def test_the_checkpoint_on_one_rank_of_either_backend(
    place: dict[str, Path], found: Ranks, name: str, tmp_path: Path
) -> None:
    folder, saved = place["root"] / name, whole(found, "saved weights")
    for backend in ("fsdp", "megatron"):
        one = rank_of(Kind.TRAINER, place["tied"], backend, optimizer=ADAM)
        one.restore(folder)
        assert np.array_equal(saved, weights_of(one))
        assert_same(found, "saved steps", train(one, None, 1, first=6, steps=2))
        one.close()
    exported = rank_of(Kind.TRAINER, export_checkpoint(folder, place["tied"], tmp_path / "out"), "fsdp")
    assert np.array_equal(saved, weights_of(exported))


def test_a_critic(place: dict[str, Path], found: Ranks, name: str) -> None:
    one = single(place, "tied", head="scalar")
    assert_same(found, "critic steps", train(one, None, 1, loss="value"))
    values = one.call(forward("values", micro_batch_tokens=BUDGET), rows_of(None, 1, 1)).batch.ragged("values").values
    assert values.any()
    assert np.abs(column(found, name, "critic values", "values") - values).max() < 1e-5


def test_bfloat16(place: dict[str, Path], found: Ranks) -> None:
    one = single(place, "tied", dtype="bfloat16")
    for got, expected in zip(found[0]["low steps"], train(one, None, 1), strict=True):
        assert got["loss"] == pytest.approx(expected["loss"], abs=5e-3)
        assert got["grad_norm"] == pytest.approx(expected["grad_norm"], rel=5e-2)
    one.close()


def test_a_scorer(place: dict[str, Path], found: Ranks, name: str) -> None:
    one = rank_of(Kind.SCORER, place["untied"], "fsdp").call(CALL, rows_of(None, 1, 1)).batch
    expected = one.ragged("ref_log_probs").values
    assert np.abs(column(found, name, "scorer log_probs", "ref_log_probs") - expected).max() < 1e-5
