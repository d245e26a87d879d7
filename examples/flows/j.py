"""What a judge answers → a number: the score of one response, or the winner of a pair."""

import re

import judge


def score(reply: list[str]) -> list[float]:
    """The score of a whole episode, read as judge.py reads that of an answer: from 0 to 1."""
    return judge.score(reply)


def winner(reply: list[str]) -> list[float]:
    """1 where the first answer of the pair is preferred, 0 where the second is, a half where neither is named."""
    named = [re.findall(r"\b[AB]\b", text) for text in reply]
    return [float(letters[-1] == "A") if letters else 0.5 for letters in named]
