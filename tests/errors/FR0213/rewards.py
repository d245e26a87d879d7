def exact(*columns):
    return []
