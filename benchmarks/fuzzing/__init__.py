"""The parts of benchmarks/fuzz.py: seeds, operations on text and on trees, the judge, the pool of workers."""
