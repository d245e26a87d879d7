"""The reward of the runs beside TRL and verl: the same function as in their scripts."""

from __future__ import annotations


def leading_digits(response: list[str], answer: list[str]) -> list[float]:
    """The share of the answer's characters that stand in their place, and 1 more for the answer and nothing else."""
    return [_score(text, wanted) for text, wanted in zip(response, answer, strict=True)]


def _score(text: str, wanted: str) -> float:
    right = sum(got == want for got, want in zip(text, wanted, strict=False))
    return right / len(wanted) + (1.0 if text.strip() == wanted else 0.0)


def nothing() -> list[dict[str, str]]:
    """A row for what never reads it: ranks that are fakes have data of their own."""
    return [{"prompt": "2+2=", "answer": "4"}]


def sums() -> list[dict[str, str]]:
    return [{"prompt": f"{a:02d}+{b:02d}=", "answer": str(a + b)} for a in range(0, 100, 3) for b in range(0, 100, 3)]


def odd_lengths(response: list[str]) -> list[float]:
    """A reward that differs within almost every group and that nothing can be learnt from."""
    return [float(len(text) % 2) for text in response]
