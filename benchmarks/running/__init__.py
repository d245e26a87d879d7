"""Sections of benchmarks/runtime.py."""
