"""Functions that presets are given as rewards; they are read, never run."""

from __future__ import annotations


def score(response: list[str], answer: list[str]) -> list[float]:
    return [float(given.strip().endswith(wanted)) for given, wanted in zip(response, answer, strict=True)]


def compare(prompt: list[str], response: list[str]) -> list[float]:
    return [float(len(text)) for text in response]
