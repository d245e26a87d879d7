"""Advantage estimators as roles: the functions of `algos` on batches, in the host pool."""
