"""Routes of a router: which reward a value of its column goes to. Takes the mapping as it is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from flowrl.graph.graph import Op
from flowrl.graph.params import ScoreParams

REST = "*"
"""The key of a route that takes what no other does."""


@dataclass(frozen=True, slots=True)
class Router:
    """`by`: the column that chooses, without its role; `routes`: key → reward role."""

    by: str
    routes: Mapping[str, str]


def router_of(op: Op) -> Router | None:
    """What an op routes by, if it is a router's."""
    if not isinstance(op.params, ScoreParams) or "router" not in op.params.extra:
        return None
    block = cast("dict[str, Any]", op.params.extra["router"])
    return Router(by=str(block["by"]).rpartition(".")[2], routes=cast("dict[str, str]", block["routes"]))


def values_of(key: str) -> tuple[str, ...]:
    """The values that a key of `routes` names: one, or several with commas."""
    return tuple(value.strip() for value in key.split(","))


def route_of(routes: Mapping[str, str], value: str) -> str | None:
    """The reward that a value goes to: by its own key, else by `*`."""
    own = (reward for key, reward in routes.items() if value in values_of(key))
    return next(own, routes.get(REST))


def written(value: object) -> str:
    """A value of a column as a flow writes it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"{value}"
