"""A reward that fake ranks stand for: only its parameters are read."""


def fake(response: list[str]) -> list[float]:
    raise NotImplementedError
