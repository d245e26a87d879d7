def score(response, answer):
    return [float(r == a) for r, a in zip(response, answer)]
