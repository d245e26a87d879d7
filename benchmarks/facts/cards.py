"""Loose names of models, as records write them → cards of the catalogue. The rules are in names.py."""

from __future__ import annotations

from functools import lru_cache

from benchmarks.facts.names import card_by_loose_name


@lru_cache(maxsize=4096)
def card_of(name: str) -> str | None:
    """The hub id of a model's card; None if the catalogue has none of that name."""
    return card_by_loose_name(name)
