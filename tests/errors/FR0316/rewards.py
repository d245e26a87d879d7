def exact(response, answer):
    return [float(a == b) for a, b in zip(response, answer, strict=True)]


def critique(response):
    return [[{"role": "user", "content": text}] for text in response]


class Debate:
    pass
