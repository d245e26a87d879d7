"""Measures what this machine achieves: products, memory, layers, decoding, collectives. Gives figures of a profile."""
