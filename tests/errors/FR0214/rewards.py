def exact(response, answer, scale=1.0):
    return [scale * (a == b) for a, b in zip(response, answer, strict=True)]
