"""Distillation on the teacher's likeliest tokens, against the full divergence and loops in float64."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from flowrl.algos.log_probs import chosen_log_probs, token_log_probs, top_log_probs
from flowrl.algos.losses import LOSSES
from flowrl.graph.params import UpdateParams
from tests.algos import reference
from tests.algos.batches import Padded, padded

VOCAB = 6
PARAMS = UpdateParams(loss="distill")


def logits_of(batch: Padded) -> Tensor:
    return torch.randn((*batch.mask.shape, VOCAB), generator=batch.generator, dtype=torch.float64)


@settings(max_examples=20, deadline=None)
@given(padded(), st.integers(1, VOCAB), st.sampled_from([1.0, 0.6]))
def test_distill_and_its_gradient_against_loops(batch: Padded, count: int, temperature: float) -> None:
    teacher, student = logits_of(batch), logits_of(batch).requires_grad_()
    made, tokens = top_log_probs(teacher, count, temperature)
    own = chosen_log_probs(student, tokens, temperature, chunk_elements=2 * VOCAB)
    terms = LOSSES["distill"](own, batch.mask, {"ref_top_log_probs": made.double()}, PARAMS)
    (grad,) = torch.autograd.grad(terms.loss.sum(), student)
    assert not grad[~batch.mask].any()
    for row, place in batch.mask.nonzero().tolist()[::5]:
        p = reference.log_softmax(teacher[row, place].tolist(), temperature)
        q = reference.log_softmax(student[row, place].tolist(), temperature)
        likeliest = sorted(range(VOCAB), key=lambda token: -p[token])[:count]
        assert tokens[row, place].tolist() == likeliest
        loss = sum(math.exp(p[t]) * (p[t] - q[t]) for t in likeliest)
        mass = sum(math.exp(p[t]) for t in likeliest)
        assert terms.loss[row, place].item() == pytest.approx(loss, abs=1e-6)
        assert terms.metrics["top_mass"][row, place].item() == pytest.approx(mass, abs=1e-6)
        # d/dx of -sum_k p_k log softmax(x)_k is mass x softmax(x) - p on the K, over the temperature.
        for token in range(VOCAB):
            share = math.exp(p[token]) if token in likeliest else 0.0
            slope = (mass * math.exp(q[token]) - share) / temperature
            assert grad[row, place, token].item() == pytest.approx(slope, abs=1e-6)


@settings(max_examples=20, deadline=None)
@given(padded())
def test_over_the_whole_vocabulary_it_is_the_divergence(batch: Padded) -> None:
    teacher, student = (logits_of(batch).log_softmax(-1) for _ in range(2))
    made, tokens = top_log_probs(teacher, VOCAB)
    columns = {"ref_top_log_probs": made.double()}
    loss = LOSSES["distill"](student.gather(-1, tokens), batch.mask, columns, PARAMS).loss
    full = (teacher.exp() * (teacher - student)).sum(-1)
    assert torch.allclose(loss[batch.mask], full[batch.mask], atol=1e-6)
    assert (loss >= -1e-6).all()
    same = LOSSES["distill"](teacher.gather(-1, tokens), batch.mask, columns, PARAMS).loss
    assert torch.allclose(same, torch.zeros_like(same), atol=1e-6)


@settings(max_examples=20, deadline=None)
@given(padded())
def test_masked_places_never_leak(batch: Padded) -> None:
    made, tokens = top_log_probs(logits_of(batch), 3)
    own = logits_of(batch).log_softmax(-1).gather(-1, tokens)
    results = []
    for fill in (0.0, torch.nan):
        teacher, student = (t.double().masked_fill(~batch.mask[..., None], fill) for t in (made, own))
        leaf = student.requires_grad_()
        loss = LOSSES["distill"](leaf, batch.mask, {"ref_top_log_probs": teacher}, PARAMS).loss
        results.append([loss.detach(), *torch.autograd.grad(loss.sum(), leaf)])
    assert all(torch.equal(clean, after) for clean, after in zip(*results, strict=True))


def test_several_tokens_at_a_place_are_each_as_one_alone() -> None:
    torch.manual_seed(0)
    logits = torch.randn(4, 3, VOCAB, dtype=torch.float64, requires_grad=True)
    tokens = torch.randint(VOCAB, (4, 3, 2))
    weight = torch.randn(4, 3, 2, dtype=torch.float64)
    together = (chosen_log_probs(logits, tokens, 0.7) * weight).sum()
    apart = sum((token_log_probs(logits, tokens[..., k], 0.7) * weight[..., k]).sum() for k in range(2))
    assert together.item() == pytest.approx(apart.item())  # type: ignore[union-attr]
    assert torch.allclose(*(torch.autograd.grad(each, logits)[0] for each in (together, apart)))  # type: ignore[arg-type]
