"""Rewards by rule for problems with one right answer. The parameters are columns: `answer` is kept from the data."""

import re
from fractions import Fraction


def math(response: list[str], answer: list[str]) -> list[float]:
    """1 where the last \\boxed{…} of a response is the answer, else 0."""
    return [float(_same(_boxed(text), want)) for text, want in zip(response, answer, strict=True)]


def dapo(response: list[str], answer: list[str]) -> list[float]:
    """1 where what follows the last `Answer:` is the answer, else -1 (Yu et al. 2025, section 2.4)."""
    found = [text.rpartition("Answer:")[2].splitlines()[:1] for text in response]
    return [1.0 if line and _same(line[0], want) else -1.0 for line, want in zip(found, answer, strict=True)]


def _boxed(text: str) -> str:
    """What stands in the last \\boxed{…}, whose braces may nest; empty without one."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return ""
    depth = 0
    for place in range(start + len("\\boxed"), len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[start + len("\\boxed{") : place]
    return ""


def _same(found: str, wanted: str) -> bool:
    """Equal as numbers where both are numbers, else as text without spaces and dollar signs."""
    left, right = _plain(found), _plain(wanted)
    try:
        return Fraction(left) == Fraction(right)
    except (ValueError, ZeroDivisionError):
        return bool(left) and left == right


def _plain(text: str) -> str:
    bare = re.sub(r"[\s$]|\\[,;!]", "", text).rstrip(".")
    grouped = re.fullmatch(r"-?\d{1,3}(,\d{3})+(\.\d+)?", bare)
    return bare.replace(",", "") if grouped else bare
