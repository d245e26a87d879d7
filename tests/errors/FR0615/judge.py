def parse(answer: str) -> float:
    return float(answer)
