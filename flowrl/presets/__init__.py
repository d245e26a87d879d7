"""Flows in YAML that ship with FlowRL."""
