def score(response: list[str], answer: list[str]) -> list[float]:
    return [0.0 for _ in response]
