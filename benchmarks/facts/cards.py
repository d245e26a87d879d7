"""Loose names of models, as records write them → cards of the catalogue."""

from __future__ import annotations

from benchmarks.facts.names import card_by_loose_name


def card_of(name: str) -> str | None:
    """The hub id of a model's card; None if the catalogue has none of that name."""
    return card_by_loose_name(name)
