"""What is published about peers, read and planned: the parts of benchmarks/accuracy.py."""
