def score(answer):
    return float(answer)
