"""Parts of benchmarks/flows.py: what is run, what stands in for data and rewards that are not here, and the table."""
