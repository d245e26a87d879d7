"""Launchers, workers, channels, weights, ledger, checkpoint, faults, export: the real clock. Reads only the Plan."""
