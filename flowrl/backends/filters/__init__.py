"""Backends of filter roles."""
