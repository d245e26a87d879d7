"""Rates: how many rows an op has a step (rows.py)."""

from __future__ import annotations

from flowrl.graph.rows import RowBounds, Rows, rows_per_step, samples_per_prompt

__all__ = ["RowBounds", "Rows", "rows_per_step", "samples_per_prompt"]
