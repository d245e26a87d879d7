def score(response, answer):
    return [float(given == right) for given, right in zip(response, answer)]
