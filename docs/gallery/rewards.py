"""The reward of the gallery's flows: whether the last number of a response is the answer."""

import re


def gsm8k(response: list[str], answer: list[str]) -> list[float]:
    """1.0 for each response that ends in its answer's number."""
    return [float(_last(r) == _last(a)) for r, a in zip(response, answer, strict=True)]


def _last(text: str) -> str | None:
    numbers = re.findall(r"-?\d[\d,]*\.?\d*", text)
    return numbers[-1].replace(",", "").rstrip(".") if numbers else None
