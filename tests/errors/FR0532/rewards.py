def score(response: list[str]) -> list[float]:
    return [float(len(text)) for text in response]
