"""The reward of flavour `router`: each row's reward is that of its route. Runs in the host pool, keeps nothing.

Rows without a reward (of a route whose role drops what fails) do not come here.
"""

from __future__ import annotations

import numpy as np

from flowrl.backends.batch import Batch, Column, Ragged
from flowrl.backends.contract import Call, Result
from flowrl.diag.diagnostic import InternalError
from flowrl.graph.graph import Op
from flowrl.graph.routes import route_of, router_of, written


class RoutedReward:
    """One rank."""

    def call(self, call: Call, batch: Batch) -> Result:
        """score: the column that chooses, and of each route the rewards of its rows → `rewards` of all rows, and the
        mean reward of each route."""
        router = router_of(call.op)
        if router is None:
            raise InternalError(f"a router has no op {call.op.id}")
        routes = [route_of(router.routes, written(value)) for value in _values(batch.columns[router.by])]
        names = [i.slot for i in call.op.inputs if i.slot != router.by]
        whole = _merged({name: batch.columns[name] for name in names}, routes, call.op)
        sums = np.asarray([row.sum() for row in whole.rows()]) if isinstance(whole, Ragged) else np.asarray(whole)
        metrics = {"rewards": (float(sums.mean()), float(len(sums)))} if len(sums) else {}
        for name in names:
            mine = np.asarray([route == name for route in routes], dtype=np.bool_)
            if mine.any():
                metrics[f"rewards_of_{name}"] = (float(sums[mine].mean()), float(mine.sum()))
        return Result(Batch(batch.ids, batch.prompt_ids, {"rewards": whole}), metrics)

    def close(self) -> None:
        """Nothing to end."""


def _values(column: Column) -> list[object]:
    return column.tolist() if isinstance(column, np.ndarray) else list(column) if isinstance(column, tuple) else []


def _merged(columns: dict[str, Column], routes: list[str | None], op: Op) -> Column:
    """Row by row the column of its route."""
    if any(isinstance(column, Ragged) for column in columns.values()):
        rows = {name: column.rows() for name, column in columns.items() if isinstance(column, Ragged)}
        return Ragged.of([rows[route or ""][place] for place, route in enumerate(routes)], np.float32)
    arrays = {name: column for name, column in columns.items() if isinstance(column, np.ndarray)}
    rewards = np.full(len(routes), np.nan, dtype=np.float32)
    for name, column in arrays.items():
        mine = np.asarray([route == name for route in routes], dtype=np.bool_)
        rewards[mine] = column[mine]
    if np.isnan(rewards).any():
        raise InternalError(f"`{op.id}` was given rows that no route has scored")
    return rewards
