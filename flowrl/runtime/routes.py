"""Which rows a router sends to which reward, and which it has back: choices over ids and the values of its column.

Takes the graph, records' metadata and a way to look at single rows; gives ids. What the driver sees of the rows is one
short value each. A reward that only routers read scores only what they send it; so does the inner call of its judge.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from flowrl.backends.batch import Batch, IntArray, Ragged
from flowrl.diag.diagnostic import FlowError, diagnose
from flowrl.graph.graph import Graph, Op
from flowrl.graph.routes import Router, route_of, router_of, written
from flowrl.runtime.launchers.contract import BoundInput, Part, Record

Peek = Callable[[Part, Sequence[str], Sequence[int]], Batch]
Chosen = tuple[IntArray, IntArray, IntArray]
"""Ids, their prompts, their tokens."""


class Routes:
    """The routers of a stage. `inputs`: the bound inputs of an op in a step, or none while it has none yet."""

    def __init__(self, graph: Graph, inputs: Callable[[Op, int], Sequence[BoundInput] | None], peek: Peek) -> None:
        self._graph = graph
        self._inputs = inputs
        self._peek = peek
        self._routers = {op.id: router for op in graph.ops if (router := router_of(op)) is not None}
        self._readers: dict[str, list[Op]] = {}
        for op in graph.ops if self._routers else ():
            for source in dict.fromkeys(i.source for i in op.inputs if i.source is not None):
                self._readers.setdefault(source, []).append(op)
        self._values: dict[tuple[str, int], tuple[int, dict[int, str]]] = {}
        """By router and step: parts of its column that were looked at, and the value of each row."""

    def joined(self, op: Op, inputs: Sequence[BoundInput]) -> Sequence[BoundInput]:
        """The inputs as far as rows must be in all of them: what the routes of a router bring are parts of one."""
        router = self._routers.get(op.id)
        if router is None:
            return inputs
        brought = [each for each in inputs if each.slot != router.by]
        if not brought:
            return inputs
        parts = tuple(part for each in brought for part in each.record.parts)
        whole = replace(brought[0], record=Record(brought[0].record.op, brought[0].record.step, parts))
        return (*(each for each in inputs if each.slot == router.by), whole)

    def taken(self, op: Op, step: int, rows: Chosen) -> Chosen:
        """Of `rows`, those that the op works on: a router on those that their own route has brought back, a routed
        reward on those that are sent to it. Raises FlowError FR0873 for a value without a route."""
        if op.id in self._routers:
            return _where(rows, self._back(op, step, rows))
        if not self._is_routed(op):
            return rows
        return _where(rows, self._sent(op, step, rows))

    def step_done(self, step: int) -> None:
        self._values = {key: value for key, value in self._values.items() if key[1] > step}

    def _is_routed(self, op: Op) -> bool:
        """Whether nothing but routers reads it, or what reads it is so."""
        readers = self._readers.get(op.id, ())
        return bool(readers) and all(self._sends(reader, op) or self._is_inner(op, reader) for reader in readers)

    def _sends(self, router: Op, op: Op) -> bool:
        """Whether `router` reads it as one of its routes, not as the column that it chooses by."""
        known = self._routers.get(router.id)
        return known is not None and all(i.slot != known.by for i in router.inputs if i.source == op.id)

    def _is_inner(self, op: Op, reader: Op) -> bool:
        """Whether it is an inner call of the routed reward that reads it."""
        return op.role == reader.role and reader.id not in self._routers and self._is_routed(reader)

    def _sent(self, op: Op, step: int, rows: Chosen) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        mine = np.zeros(len(rows[0]), dtype=np.bool_)
        for reader in self._readers[op.id]:
            its = self._sent(reader, step, rows) if self._is_routed(reader) else np.ones_like(mine)
            if reader.id in self._routers:  # another router's rows may have values that this one does not know
                routes = self._routes(reader, step, _where(rows, its))
                its[its] = True if routes is None else [route == op.role for route in routes]
            mine |= its
        return mine

    def _back(self, op: Op, step: int, rows: Chosen) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        inputs = self._inputs(op, step) or ()
        scored = {i.slot: {id for part in i.record.parts for id in part.ids.tolist()} for i in inputs}
        routes = self._routes(op, step, rows) or [None] * len(rows[0])
        back = [id in scored.get(route or "", ()) for id, route in zip(rows[0].tolist(), routes, strict=True)]
        return np.asarray(back, dtype=np.bool_)

    def _routes(self, router: Op, step: int, rows: Chosen) -> list[str | None] | None:
        """The reward that each row goes to; None where the router's column is not there yet."""
        known = self._routers[router.id]
        bound = next((i for i in self._inputs(router, step) or () if i.slot == known.by), None)
        if bound is None:
            return None
        values = self._looked_at(router, step, bound)
        keys = rows[1] if bound.by_prompt else rows[0]
        return [self._route(router, known, values.get(key)) for key in keys.tolist()]

    def _route(self, op: Op, router: Router, value: str | None) -> str | None:
        if value is None:  # a row that is not among those of its column is not among the router's
            return None
        route = route_of(router.routes, value)
        if route is None:
            span = op.spans.get("routes") or self._graph.role(op.role).span or op.span
            known = ", ".join(f"`{key}`" for key in router.routes)
            raise FlowError(diagnose("FR0873", span, role=op.role, by=router.by, value=f"`{value}`", known=known))
        return route

    def _looked_at(self, router: Op, step: int, bound: BoundInput) -> Mapping[int, str]:
        seen, values = self._values.get((router.id, step), (0, {}))
        for part in bound.record.parts[seen:]:
            rows = self._peek(part, [bound.field], part.ids.tolist())
            keys = rows.prompt_ids if bound.by_prompt else rows.ids
            values.update(zip(keys.tolist(), _texts(rows, bound.field), strict=True))
        self._values[router.id, step] = len(bound.record.parts), values
        return values


def _texts(rows: Batch, field: str) -> list[str]:
    """The values as they are written in a flow."""
    column = rows.columns[field]
    values = column.rows() if isinstance(column, Ragged) else list(column)
    return [written(value.item() if isinstance(value, np.generic) else value) for value in values]


def _where(rows: Chosen, mine: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Chosen:
    return rows[0][mine], rows[1][mine], rows[2][mine]
