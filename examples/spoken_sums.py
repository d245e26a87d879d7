"""Sums that reasoning-gym (`chain_sum`) puts in words, for a pretrained chat model; its own verifier scores them."""

import functools
import re

import reasoning_gym

SYSTEM = {"role": "system", "content": "Answer with a number."}
"""Shorter than the one that the model's template would put there."""


@functools.cache
def _dataset(seed: int, size: int) -> reasoning_gym.dataset.ProceduralDataset:
    limits = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2}
    return reasoning_gym.create_dataset("chain_sum", seed=seed, size=size, **limits)


def problems(seed: int, size: int) -> list[dict[str, object]]:
    """Rows with `messages` (what to answer with, and the question) and `entry`, what the verifier needs."""
    return [
        {"messages": [SYSTEM, {"role": "user", "content": entry["question"]}], "entry": entry}
        for entry in _dataset(seed, size)
    ]


def reward(response: list[str], entry: list[dict[str, object]]) -> list[float]:
    """The verifier's score of the last number in the response; 0 without one."""
    score = _dataset(0, 1).score_answer
    numbers = [re.findall(r"-?\d+", text) for text in response]
    return [float(score(found[-1], item)) if found else 0.0 for found, item in zip(numbers, entry, strict=True)]
