"""Roles of kind function: user code over columns, anywhere in the graph."""
