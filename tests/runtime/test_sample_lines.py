"""Whichever reward comes first, the line of a sample is the same: what differs in time only must not be told."""

from __future__ import annotations

import json
from itertools import permutations
from pathlib import Path
from typing import Any, cast

from flowrl.runtime.samples import Line, SampleLog
from tests.runtime.invariant_flows import placed

ROLES = ("actor_train", "actor_infer")


def _log(folder: Path) -> SampleLog:
    graph = placed("dapo", (ROLES,), folder).stages[0].graph
    return SampleLog(graph, cast("Any", None), cast("Any", None), 1)


def _told(log: SampleLog, given: dict[str, float], reward: float | None = None) -> set[str]:
    """Every line that any order of arrival gives, as text."""
    orders = [dict(pairs) for pairs in permutations(given.items())]
    return {json.dumps(log._settled(cast("Line", {"reward": reward, "rewards": order}))) for order in orders}


def test_the_reward_that_an_estimator_reads_is_the_lines_whichever_came_first(tmp_path: Path) -> None:
    log = _log(tmp_path)
    read = [role for role, is_read in log._roles.items() if is_read]
    others = [role for role, is_read in log._roles.items() if not is_read]
    assert len(read) == 1
    assert len(others) == 2
    every = {role: float(place) for place, role in enumerate((*others, *read))}
    (line,) = _told(log, every)
    assert json.loads(line)["reward"] == every[read[0]]
    assert list(json.loads(line)["rewards"]) == list(log._roles)


def test_of_a_filtered_row_the_first_in_the_graph_counts_and_an_environments_stays(tmp_path: Path) -> None:
    log = _log(tmp_path)
    others = [role for role, is_read in log._roles.items() if not is_read]
    some = {role: float(place) for place, role in enumerate(others)}
    (line,) = _told(log, some)
    assert json.loads(line)["reward"] == some[others[0]]
    (kept,) = _told(log, some, reward=7.0)
    assert json.loads(kept)["reward"] == 7.0
