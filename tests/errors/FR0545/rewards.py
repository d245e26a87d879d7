def score(response: list[str], answer: list[str]) -> list[float]:
    return [float(a == b) for a, b in zip(response, answer, strict=True)]
