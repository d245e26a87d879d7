"""Generators: hf, vllm."""
