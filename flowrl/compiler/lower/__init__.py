"""FlowSpec → Graph: the last place that sees the spec."""
