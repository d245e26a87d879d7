"""FlowRL: a declarative compiler for the dataflow of LLM reinforcement learning."""

__version__ = "0.1.0"
