"""Two ranks of FSDP2 over gloo against one rank on the same rows (DESIGN, promise 2)."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowrl.backends.trainers.fsdp.export import export_checkpoint
from flowrl.graph.graph import Kind
from tests.backends.ranks import forward, rank_of
from tests.backends.tiny import make_tiny
from tests.backends.trainers.two_ranks import ADAM, BUDGET, SGD, SGD_STEPS, both, rows_of, train, weights_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders; `one rank` holds the checkpoint of one rank after three updates with Adam. Odd sizes cut unevenly."""
    root = tmp_path_factory.mktemp("two")
    for name in ("one rank", "two ranks"):
        (root / name).mkdir()
    folders = {
        "tied": make_tiny(root / "tied", ffn_size=51),
        "untied": make_tiny(root / "untied", tie_embeddings=False),
        "one rank": root / "one rank",
        "two ranks": root / "two ranks",
    }
    single = rank_of(Kind.TRAINER, folders["tied"], "fsdp", optimizer=ADAM)
    train(single, None)
    single.save(folders["one rank"])
    return folders


@pytest.fixture(scope="module")
def found(place: dict[str, Path]) -> list[dict[str, Any]]:
    return both(place)


def assert_same(ranks: list[dict[str, Any]], key: str, expected: list[dict[str, float]], rel: float = 1e-5) -> None:
    """Every rank reports the metrics of the whole minibatch, and they are those of one rank."""
    for made in ranks:
        assert made[key] == ranks[0][key]
        for got, single in zip(made[key], expected, strict=True):
            assert set(got) == set(single)
            for name, value in single.items():
                assert got[name] == pytest.approx(value, rel=rel, abs=1e-6), name


@pytest.mark.parametrize("name", ["tied", "untied"])
def test_losses_and_gradient_norms_of_sgd(place: dict[str, Path], found: list[dict[str, Any]], name: str) -> None:
    single = rank_of(Kind.TRAINER, place[name], "fsdp", optimizer=SGD)
    call = forward(micro_batch_tokens=BUDGET)
    before = single.call(call, rows_of(None, 1)).batch.ragged("old_log_probs").values
    assert np.abs(np.concatenate([made[f"{name} log_probs"] for made in found]) - before).max() < 1e-5
    assert all(made[f"{name} nothing"] for made in found)
    start = weights_of(single).view(np.float32)
    assert_same(found, f"{name} steps", train(single, None, steps=SGD_STEPS))
    after = single.call(call, rows_of(None, 1)).batch.ragged("old_log_probs").values
    assert np.abs(after - before).max() > 0.1  # the rate does move the parameters
    assert np.abs(np.concatenate([made[f"{name} after"] for made in found]) - after).max() < 1e-4
    together = found[0][f"{name} weights"].view(np.float32) + found[1][f"{name} weights"].view(np.float32)
    moved = weights_of(single).view(np.float32)
    assert np.linalg.norm(moved - start) > 0.01 * np.linalg.norm(start)
    assert np.abs(together - moved).max() < 1e-5
    assert all(made[f"{name} weights"].any() for made in found)


def test_the_first_step_of_adam(place: dict[str, Path], found: list[dict[str, Any]]) -> None:
    """Only the first: Adam divides by the gradient's size and so amplifies the rounding of gradients near zero."""
    single = rank_of(Kind.TRAINER, place["tied"], "fsdp", optimizer=ADAM)
    assert_same(found, "adam steps", train(single, None, steps=1))


def test_one_ranks_checkpoint_on_two(place: dict[str, Path], found: list[dict[str, Any]]) -> None:
    single = rank_of(Kind.TRAINER, place["tied"], "fsdp", optimizer=ADAM)
    single.restore(place["one rank"])
    assert np.array_equal(sum(made["restored weights"] for made in found), weights_of(single))
    assert_same(found, "restored steps", train(single, None, first=3)[:1])


def test_two_ranks_checkpoint_on_one(place: dict[str, Path], found: list[dict[str, Any]], tmp_path: Path) -> None:
    single = rank_of(Kind.TRAINER, place["tied"], "fsdp", optimizer=ADAM)
    single.restore(place["two ranks"])
    saved = sum(made["saved weights"] for made in found)
    assert np.array_equal(saved, weights_of(single))
    exported = rank_of(Kind.TRAINER, export_checkpoint(place["two ranks"], place["tied"], tmp_path / "out"), "fsdp")
    assert np.array_equal(saved, weights_of(exported))
    assert_same(found, "saved steps", train(single, None, first=6)[:1])


def test_a_critic(place: dict[str, Path], found: list[dict[str, Any]]) -> None:
    single = rank_of(Kind.TRAINER, place["tied"], "fsdp", head="scalar", optimizer=SGD)
    assert_same(found, "critic steps", train(single, None, loss="value"))
    values = single.call(forward("values"), rows_of(None, 1)).batch.ragged("values").values
    got = np.concatenate([made["critic values"].ragged("values").values for made in found])
    assert values.any()
    assert np.abs(got - values).max() < 1e-5


def test_bfloat16(place: dict[str, Path], found: list[dict[str, Any]]) -> None:
    single = rank_of(Kind.TRAINER, place["tied"], "fsdp", dtype="bfloat16", optimizer=SGD)
    low = single.call(forward(micro_batch_tokens=BUDGET), rows_of(None, 1)).batch.ragged("old_log_probs").values
    assert np.abs(np.concatenate([made["low log_probs"] for made in found]) - low).max() < 0.05
    expected = train(single, None)
    for got, metrics in zip(found[0]["low steps"], expected, strict=True):
        assert got["loss"] == pytest.approx(metrics["loss"], abs=5e-3)
        assert got["grad_norm"] == pytest.approx(metrics["grad_norm"], rel=5e-2)
    single.close()
