def exact(response, answer):
    return [float(a == b) for a, b in zip(response, answer, strict=True)]
