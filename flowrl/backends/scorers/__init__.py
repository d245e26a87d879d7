"""Scorers that need no trainer's machinery: a plain copy of a model on each rank, or an engine."""
