def exact(response, answer):
    return [float(a == b) for a, b in zip(response, answer, strict=True)]


def short(response):
    return [1.0 / (1 + len(text)) for text in response]


def passes(response, tests):
    return [float(all(test in text for test in tests)) for text, tests in zip(response, tests, strict=True)]
