"""Parts of benchmarks/search.py: how good the plans are, judged by code that shares nothing with the search."""
