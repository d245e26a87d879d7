"""Word problems in the manner of GSM8K, made by reasoning-gym (`gsm_symbolic`) and scored by its own verifier."""

import functools

import reasoning_gym
from reasoning_gym.utils import SYSTEM_PROMPTS, extract_answer


@functools.cache
def _dataset(seed: int, size: int) -> reasoning_gym.dataset.ProceduralDataset:
    return reasoning_gym.create_dataset("gsm_symbolic", seed=seed, size=size)


def problems(seed: int, size: int) -> list[dict[str, object]]:
    """Rows with `messages` (a system prompt and the question) and `entry`, what the verifier needs."""
    system = {"role": "system", "content": SYSTEM_PROMPTS["default"]}
    return [
        {"messages": [system, {"role": "user", "content": entry["question"]}], "entry": entry}
        for entry in _dataset(seed, size)
    ]


def reward(response: list[str], entry: list[dict[str, object]]) -> list[float]:
    """The verifier's score of what stands in the last <answer> tags; 0 without them."""
    score = _dataset(0, 1).score_answer
    pairs = zip(response, entry, strict=True)
    return [float(score(extract_answer(text), item)) if extract_answer(text) else 0.0 for text, item in pairs]
