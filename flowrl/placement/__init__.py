"""Layouts, cost, placement: which roles share which devices, whether it fits, how long a step takes."""
