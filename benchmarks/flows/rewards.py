"""Functions that twelve_roles.yaml names; they are read, never run."""

from __future__ import annotations


def math(response: list[str], answer: list[str]) -> list[float]:
    return [float(given.strip().endswith(wanted)) for given, wanted in zip(response, answer, strict=True)]


def code(response: list[str], answer: list[str]) -> list[float]:
    return [float(wanted in given) for given, wanted in zip(response, answer, strict=True)]


def form(response: list[str]) -> list[float]:
    return [float("<answer>" in given) for given in response]
