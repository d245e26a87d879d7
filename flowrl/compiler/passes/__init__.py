"""Pure functions Graph → Graph, one per file; the order is PASSES in pipeline.py."""
