"""The reward function that the flows of records name; it is planned, never run."""


def score(response: list[str]) -> list[float]:
    """One figure a response."""
    return [float(len(text) > 0) for text in response]
