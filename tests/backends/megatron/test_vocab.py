"""Log-probs over a cut vocabulary against those over a whole one; tp ranks are threads that meet at a barrier."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from flowrl.algos.log_probs import chosen_log_probs, token_log_probs_and_entropy, top_log_probs
from flowrl.backends.trainers.megatron import vocab
from flowrl.backends.trainers.megatron.vocab import Cut

VOCAB, ROWS, TOKENS, HEAT = 11, 2, 5, 0.7


class Ranks:
    """Stands in for torch.distributed within vocab.py."""

    ReduceOp = torch.distributed.ReduceOp

    def __init__(self, size: int) -> None:
        self._size, self._meet = size, threading.Barrier(size, timeout=60)
        self._given: dict[int, Tensor] = {}
        self._own = threading.local()

    def run(self, work: Callable[[int], Any]) -> list[Any]:
        def as_rank(rank: int) -> Any:
            self._own.rank = rank
            return work(rank)

        with ThreadPoolExecutor(self._size) as pool:
            return list(pool.map(as_rank, range(self._size)))

    def get_world_size(self, group: Any) -> int:
        return self._size

    def all_reduce(self, values: Tensor, op: Any = torch.distributed.ReduceOp.SUM, group: Any = None) -> None:
        every = torch.stack(self._all(values))
        values.copy_(every.amax(0) if op == self.ReduceOp.MAX else every.sum(0))

    def all_gather(self, parts: list[Tensor], values: Tensor, group: Any = None) -> None:
        for part, given in zip(parts, self._all(values), strict=True):
            part.copy_(given)

    def _all(self, values: Tensor) -> list[Tensor]:
        self._given[self._own.rank] = values.clone()
        self._meet.wait()
        found = [self._given[rank] for rank in range(self._size)]
        self._meet.wait()
        return found


def cuts(tp: int) -> list[Cut]:
    rows = -(-VOCAB // tp)
    widths = [max(0, min(rows, VOCAB - rank * rows)) for rank in range(tp)]
    return [Cut(rank * rows, width, None, chunk_elements=16) for rank, width in enumerate(widths)]


def padded(logits: Tensor, cut: Cut, tp: int) -> Tensor:
    """A rank's logits, with what pads the vocabulary: large, so that it would tell."""
    own = logits[..., cut.first : cut.first + cut.width]
    return torch.nn.functional.pad(own, (0, -(-VOCAB // tp) - cut.width), value=50.0)


@pytest.fixture(params=[2, 4, 8])
def tp(request: pytest.FixtureRequest) -> int:
    """With 8 ranks the last two have no token at all."""
    return int(request.param)


@pytest.fixture
def ranks(tp: int, monkeypatch: pytest.MonkeyPatch) -> Ranks:
    made = Ranks(tp)
    monkeypatch.setattr(vocab, "dist", made)
    return made


def test_log_probs_entropy_and_their_gradients(ranks: Ranks, tp: int) -> None:
    torch.manual_seed(0)
    logits = torch.randn(ROWS, TOKENS, VOCAB, dtype=torch.float64, requires_grad=True)
    tokens = torch.randint(0, VOCAB, (ROWS, TOKENS))
    weights, others = torch.randn(2, ROWS, TOKENS, dtype=torch.float64)
    expected, entropies = token_log_probs_and_entropy(logits, tokens, HEAT)
    (expected * weights + entropies * others).sum().backward()

    def work(rank: int) -> tuple[Tensor, Tensor, Tensor]:
        own = padded(logits.detach(), cuts(tp)[rank], tp).requires_grad_()
        made, entropy = vocab.log_probs(own, tokens, cuts(tp)[rank], HEAT, with_entropy=True)
        assert entropy is not None
        (made * weights + entropy * others).sum().backward()
        assert own.grad is not None
        return made.detach(), entropy.detach(), own.grad[..., : cuts(tp)[rank].width]

    found = ranks.run(work)
    assert logits.grad is not None
    for made, entropy, _ in found:
        assert (made - expected).abs().max() < 1e-12
        assert (entropy - entropies).abs().max() < 1e-12
    assert (torch.cat([grad for _, _, grad in found], dim=-1) - logits.grad).abs().max() < 1e-12


def test_several_tokens_at_a_place(ranks: Ranks, tp: int) -> None:
    torch.manual_seed(1)
    logits = torch.randn(ROWS, TOKENS, VOCAB, dtype=torch.float64, requires_grad=True)
    tokens = torch.randint(0, VOCAB, (ROWS, TOKENS, 3))
    weights = torch.randn(ROWS, TOKENS, 3, dtype=torch.float64)
    expected = chosen_log_probs(logits, tokens, HEAT)
    (expected * weights).sum().backward()

    def work(rank: int) -> tuple[Tensor, Tensor]:
        own = padded(logits.detach(), cuts(tp)[rank], tp).requires_grad_()
        made, _ = vocab.log_probs(own, tokens, cuts(tp)[rank], HEAT)
        (made * weights).sum().backward()
        assert own.grad is not None
        return made.detach(), own.grad[..., : cuts(tp)[rank].width]

    found = ranks.run(work)
    assert logits.grad is not None
    assert all((made - expected).abs().max() < 1e-12 for made, _ in found)
    assert (torch.cat([grad for _, grad in found], dim=-1) - logits.grad).abs().max() < 1e-12


def test_the_likeliest_of_all_ranks(ranks: Ranks, tp: int) -> None:
    torch.manual_seed(2)
    logits = torch.randn(ROWS, TOKENS, VOCAB)
    expected, tokens = top_log_probs(logits, 4, HEAT)
    found = ranks.run(lambda rank: vocab.likeliest(padded(logits, cuts(tp)[rank], tp), 4, cuts(tp)[rank], HEAT))
    for made, chosen in found:
        assert torch.equal(chosen, tokens)
        assert (made - expected).abs().max() < 1e-5
