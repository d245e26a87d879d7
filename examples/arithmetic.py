"""Two-digit addition from reasoning-gym, scored by its own verifier.

The model writes the digits of the sum from the last to the first, as one adds by hand; `reward` turns them round before
the verifier sees them.
"""

import functools

import reasoning_gym
from reasoning_gym.dataset import ProceduralDataset


@functools.cache
def _dataset(seed: int, size: int) -> ProceduralDataset:
    return reasoning_gym.create_dataset(
        "basic_arithmetic",
        seed=seed,
        size=size,
        min_terms=2,
        max_terms=2,
        min_digits=2,
        max_digits=2,
        operators=("+",),
        allow_parentheses=False,
        allow_negation=False,
    )


def problems(seed: int, size: int) -> list[dict[str, object]]:
    """Rows with `question` ("23+45="), `response` ("86") and `entry`, which is what the verifier needs."""
    rows: list[dict[str, object]] = []
    for entry in _dataset(seed, size):
        question = entry["metadata"]["expression"].replace(" ", "") + "="
        rows.append({"question": question, "response": entry["answer"][::-1], "entry": entry})
    return rows


def reward(response: list[str], entry: list[dict[str, object]]) -> list[float]:
    """1 where reasoning-gym's verifier accepts the sum, less where it gives less."""
    score = _dataset(0, 1).score_answer
    return [score(text.strip()[::-1], item) for text, item in zip(response, entry, strict=True)]


def partial_credit(response: list[str], entry: list[dict[str, object]]) -> list[float]:
    """The verifier's score, a tenth for every digit in its right place, and half for writing nothing but digits:
    something to learn from at the start."""
    exact = reward(response, entry)
    return [
        score + 0.1 * _right_places(text, str(item["answer"])[::-1]) + 0.5 * _share_of_digits(text)
        for score, text, item in zip(exact, response, entry, strict=True)
    ]


def _right_places(text: str, wanted: str) -> int:
    return sum(got == want for got, want in zip(text, wanted, strict=False))


def _share_of_digits(text: str) -> float:
    return sum(character.isdigit() for character in text) / max(len(text), 1)
