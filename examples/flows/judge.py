"""What judge.j2 is answered with → a number."""

import re


def score(reply: list[str]) -> list[float]:
    """The last `Score: N` of each reply, from 0 to 10, as a number from 0 to 1; 0 where the judge gave none."""
    found = [re.findall(r"[Ss]core:\s*(\d+(?:\.\d+)?)", text) for text in reply]
    return [min(float(numbers[-1]), 10.0) / 10 if numbers else 0.0 for numbers in found]
