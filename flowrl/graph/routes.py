"""Routes of a router: which reward a value of its column goes to. Takes the mapping as it is written."""

from __future__ import annotations

from collections.abc import Mapping

REST = "*"
"""The key of a route that takes what no other does."""


def values_of(key: str) -> tuple[str, ...]:
    """The values that a key of `routes` names: one, or several with commas."""
    return tuple(value.strip() for value in key.split(","))


def route_of(routes: Mapping[str, str], value: str) -> str | None:
    """The reward that a value goes to: by its own key, else by `*`."""
    own = (reward for key, reward in routes.items() if value in values_of(key))
    return next(own, routes.get(REST))
