"""Seconds of ops, moves and steps, as ledger lines."""
