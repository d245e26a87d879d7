"""The typed graph: values, op and loss signatures, verifier, text form. Knows no YAML, no hardware, no torch."""
