import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl.backends.generators.sampling import Sampling, pick


def by_hand(logits: list[float], uniform: float, sampling: Sampling) -> tuple[int, float]:
    """Sort, cut and count up, in float64."""
    scaled = np.asarray(logits, dtype=np.float64) / (sampling.temperature or 1.0)
    probs = np.exp(scaled - scaled.max())
    probs /= probs.sum()
    if sampling.temperature == 0:
        return int(np.argmax(logits)), float(np.log(probs[np.argmax(logits)]))
    order = sorted(range(len(probs)), key=lambda i: (-probs[i], i))
    kept = [i for i in order if sampling.top_k < 1 or probs[i] >= probs[order[sampling.top_k - 1]]]
    mass = sum(probs[i] for i in kept)
    nucleus: list[int] = []
    for i in kept:
        if sampling.top_p == 1 or not nucleus or sum(probs[j] for j in nucleus) < sampling.top_p * mass:
            nucleus.append(i)
    goal, run = uniform * sum(probs[i] for i in nucleus), 0.0
    for i in sorted(nucleus):
        run += probs[i]
        if run > goal:
            return i, float(np.log(probs[i]))
    raise AssertionError


@settings(max_examples=60, deadline=None)
@given(
    # Logits that are one in float32 would be tied there and not in the reference.
    st.lists(st.integers(-400, 400).map(lambda n: n / 100), min_size=6, max_size=6, unique=True),
    st.floats(0, 0.999),
    st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    st.sampled_from([-1, 1, 3, 6]),
    st.sampled_from([1.0, 0.9, 0.3]),
)
def test_against_a_sort_and_a_count(
    logits: list[float], uniform: float, temperature: float, top_k: int, top_p: float
) -> None:
    sampling = Sampling(temperature, top_p, top_k)
    tokens, log_probs = pick(torch.tensor([logits]), torch.tensor([uniform], dtype=torch.float64), sampling)
    token, log_prob = by_hand(logits, uniform, sampling)
    if abs(
        by_hand(logits, min(uniform + 1e-5, 0.9999), sampling)[0]
        - by_hand(logits, max(uniform - 1e-5, 0.0), sampling)[0]
    ):
        return  # on the border between two tokens float32 may fall on either side
    assert tokens.item() == token
    assert log_probs.item() == pytest.approx(log_prob, abs=1e-5)


def test_frequencies_are_the_probabilities() -> None:
    logits = torch.tensor([1.0, 0.0, -1.0, 2.0, -torch.inf])
    uniforms = torch.from_numpy(np.random.default_rng(0).random(100_000))
    tokens, _ = pick(logits.expand(len(uniforms), -1), uniforms, Sampling(temperature=0.8))
    shares = torch.bincount(tokens, minlength=5) / len(tokens)
    assert torch.allclose(shares, (logits / 0.8).softmax(0), atol=0.005)


def test_the_largest_uniform_never_leaves_the_vocabulary() -> None:
    almost = torch.full((64,), np.nextafter(1.0, 0.0), dtype=torch.float64)
    tokens, _ = pick(torch.randn(64, 1000), almost, Sampling(top_k=3))
    assert int(tokens.max()) < 1000


def test_a_row_does_not_see_the_others() -> None:
    logits, uniforms = torch.randn(8, 50), torch.rand(8, dtype=torch.float64)
    tokens, log_probs = pick(logits, uniforms, Sampling(0.9, 0.8, 20))
    for row in range(8):
        alone = pick(logits[row : row + 1], uniforms[row : row + 1], Sampling(0.9, 0.8, 20))
        assert (alone[0].item(), alone[1].item()) == (tokens[row].item(), log_probs[row].item())
