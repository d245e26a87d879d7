import pytest
import torch

from flowrl.algos.log_probs import token_log_probs, token_log_probs_and_entropy
from tests.algos import reference


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("chunk_elements", [1, 24, 10**6])
def test_against_a_plain_loop(temperature: float, chunk_elements: int) -> None:
    torch.manual_seed(0)
    logits, targets = torch.randn(2, 5, 11) * 3, torch.randint(11, (2, 5))
    got, entropy = token_log_probs_and_entropy(logits, targets, temperature, chunk_elements)
    for row in range(2):
        for place in range(5):
            logs = reference.log_softmax(logits[row, place].tolist(), temperature)
            assert got[row, place].item() == pytest.approx(logs[targets[row, place]], abs=1e-6)
            by_hand = -sum(x * torch.tensor(x).exp().item() for x in logs)
            assert entropy[row, place].item() == pytest.approx(by_hand, abs=1e-5)


@pytest.mark.parametrize("chunk_elements", [7, 10**6])
def test_gradients_are_those_of_autograd(chunk_elements: int) -> None:
    torch.manual_seed(0)
    logits = torch.randn(6, 5, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(5, (6,))

    def ours(x: torch.Tensor) -> torch.Tensor:
        log_probs, entropy = token_log_probs_and_entropy(x, targets, 0.7, chunk_elements)
        return (log_probs * torch.arange(6)).sum() + (entropy * torch.arange(6).cos()).sum()

    assert torch.autograd.gradcheck(ours, (logits,))
    logs = torch.log_softmax(logits / 0.7, dim=-1)
    plain = (logs.gather(-1, targets[:, None])[:, 0] * torch.arange(6)).sum()
    plain = plain - ((logs.exp() * logs).sum(-1) * torch.arange(6).cos()).sum()
    (expected,) = torch.autograd.grad(plain, logits)
    (got,) = torch.autograd.grad(ours(logits), logits)
    assert torch.allclose(got, expected, atol=1e-12)


def test_bfloat16_logits_are_summed_in_float32() -> None:
    torch.manual_seed(0)
    logits = (torch.randn(4, 1000) * 5).bfloat16().requires_grad_()
    targets = torch.randint(1000, (4,))
    got = token_log_probs(logits, targets)
    expected = torch.log_softmax(logits.double(), dim=-1).gather(-1, targets[:, None])[:, 0]
    assert got.dtype is torch.float32
    assert torch.allclose(got.double(), expected, atol=1e-5)
    got.sum().backward()
    assert logits.grad is not None
    assert logits.grad.dtype is torch.bfloat16


def test_no_tokens() -> None:
    logits = torch.zeros(0, 5, requires_grad=True)
    token_log_probs(logits, torch.zeros(0, dtype=torch.int64)).sum().backward()
    assert logits.grad is not None
    assert logits.grad.shape == (0, 5)
