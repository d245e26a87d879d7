"""Environments: what answers a generator turn by turn, where it runs, and those that ship with FlowRL."""
