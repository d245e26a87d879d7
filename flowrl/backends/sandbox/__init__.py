"""Runs code that nobody has read, behind walls and under limits."""
