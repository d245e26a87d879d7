"""Updates on pairs and on a teacher's likeliest tokens, against steps written by hand on each row alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

from flowrl.backends.batch import Batch, Ragged
from flowrl.graph.graph import Kind
from flowrl.graph.params import OptimizerParams
from tests.backends.ranks import rank_of, sample_rows, update
from tests.backends.tiny import make_tiny
from tests.backends.trainers.test_contract import masks, parameters_of, plain_log_probs

SGD = OptimizerParams(name="sgd", lr=0.1, max_grad_norm=None)
BUDGETS = [8, 40, 10_000]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("pairs") / "m")


def paired() -> Batch:
    """Five prompts with two samples each; the fourth is a tie, and of the fifth one sample was dropped."""
    batch = sample_rows(10)
    signs = np.asarray([1, -1, -1, 1, 1, -1, 0, 0, 1, -1], dtype=np.int8)
    whole = Batch(batch.ids, batch.prompt_ids, {**batch.columns, "pair_sign": signs})
    return whole.select(range(9))


PAIRS = ((0, 1), (3, 2), (4, 5))


def moved(model: torch.nn.Module, loss: Tensor) -> dict[str, Tensor]:
    loss.backward()
    return {name: p.detach() - 0.1 * p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("budget", BUDGETS)
def test_dpo_is_a_hand_written_step(folder: Path, budget: int) -> None:
    batch = paired()
    trainer = rank_of(Kind.TRAINER, folder, "fsdp", optimizer=SGD)
    result = trainer.call(update(loss="dpo", beta=0.2, micro_batch_tokens=budget), batch)
    model = AutoModelForCausalLM.from_pretrained(folder)
    log_probs, _ = plain_log_probs(model, batch)
    reference = [torch.tensor(row[1:].tolist()) for row in batch.ragged("ref_log_probs").rows()]
    sums = [((p - r) * m).sum() for p, r, m in zip(log_probs, reference, masks(batch), strict=True)]
    loss = -torch.stack([logsigmoid(0.2 * (sums[a] - sums[b])) for a, b in PAIRS]).mean()
    assert result.metrics["loss"][0] == pytest.approx(loss.item(), abs=1e-5)
    expected, got = moved(model, loss), parameters_of(trainer)
    assert all(torch.allclose(got[name], value, atol=1e-6) for name, value in expected.items())
    trainer.close()


@pytest.mark.parametrize("budget", BUDGETS)
def test_bradley_terry_is_a_hand_written_step(folder: Path, tmp_path: Path, budget: int) -> None:
    torch.manual_seed(1)
    model = AutoModelForTokenClassification.from_pretrained(folder, num_labels=1)
    torch.nn.init.normal_(model.score.weight, std=0.1)
    scored = tmp_path / "scored"
    model.save_pretrained(scored)
    batch = paired()
    trainer = rank_of(Kind.TRAINER, scored, "fsdp", head="scalar", optimizer=SGD)
    result = trainer.call(update(loss="bradley_terry", micro_batch_tokens=budget), batch)
    model = AutoModelForTokenClassification.from_pretrained(scored).eval()
    rows = [torch.tensor([row.tolist()]) for row in batch.ragged("tokens").rows()]
    scores = [model(row).logits[0, -1, 0] for row in rows]
    loss = -torch.stack([logsigmoid(scores[a] - scores[b]) for a, b in PAIRS]).mean()
    assert result.metrics["loss"] == (pytest.approx(loss.item(), abs=1e-5), 1.0)
    assert result.metrics["accuracy"] == (pytest.approx(np.mean([float(scores[a] > scores[b]) for a, b in PAIRS])), 3.0)
    expected, got = moved(model, loss), parameters_of(trainer)
    assert all(torch.allclose(got[name], value, atol=1e-6) for name, value in expected.items())
    trainer.close()


@pytest.mark.parametrize("budget", BUDGETS)
def test_distill_is_a_hand_written_step(folder: Path, budget: int) -> None:
    batch = sample_rows(7)
    lengths, random = batch.ragged("tokens").lengths, np.random.default_rng(0)
    total = int(lengths.sum())
    tokens = np.stack([random.permutation(90)[:3] for _ in range(total)]).astype(np.int32)
    teacher = np.log(random.dirichlet(np.ones(4), total)[:, :3]).astype(np.float32)
    columns = {"ref_top_tokens": Ragged(tokens, lengths), "ref_top_log_probs": Ragged(teacher, lengths)}
    whole = Batch(batch.ids, batch.prompt_ids, {**batch.columns, **columns})
    trainer = rank_of(Kind.TRAINER, folder, "fsdp", optimizer=SGD)
    result = trainer.call(update(loss="distill", micro_batch_tokens=budget), whole)
    model = AutoModelForCausalLM.from_pretrained(folder)
    parts = []
    for row, mask in enumerate(masks(batch)):
        ids = torch.tensor([batch.ragged("tokens").rows()[row].tolist()])
        logs = model(ids).logits[0, :-1].log_softmax(-1)
        chosen = torch.tensor(whole.ragged("ref_top_tokens").rows()[row][1:].tolist())
        p = torch.tensor(whole.ragged("ref_top_log_probs").rows()[row][1:].tolist())
        parts.append((((p.exp() * (p - logs.gather(-1, chosen))).sum(-1)) * mask).sum())
    loss = torch.stack(parts).sum() / torch.cat(masks(batch)).sum()
    assert result.metrics["loss"][0] == pytest.approx(loss.item(), abs=1e-5)
    expected, got = moved(model, loss), parameters_of(trainer)
    assert all(torch.allclose(got[name], value, atol=1e-6) for name, value in expected.items())
    trainer.close()


def test_ties_alone_move_nothing(folder: Path) -> None:
    trainer = rank_of(Kind.TRAINER, folder, "fsdp", optimizer=SGD)
    before = parameters_of(trainer)
    assert "skipped" in trainer.call(update(loss="dpo", beta=0.2), paired().select([6, 7])).metrics
    assert all(torch.equal(before[name], value) for name, value in parameters_of(trainer).items())
    trainer.close()
