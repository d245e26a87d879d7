def score(response):
    return [0.0 for _ in response]
