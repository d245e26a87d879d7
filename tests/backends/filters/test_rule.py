"""The backends that look at rows on the host: filters by a rule, and combined rewards."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flowrl.backends.batch import Batch, Column
from flowrl.backends.contract import LENGTH, STOP, Call, RankSetup
from flowrl.backends.registry import make_rank
from flowrl.diag.diagnostic import FlowError
from flowrl.graph.graph import Kind, Op, Role
from flowrl.graph.params import FilterParams, OpParams, ScoreParams
from flowrl.graph.types import Granularity
from flowrl.plan.plan import Layout

IDS = np.asarray([(4 << 16), (4 << 16) + 1, (9 << 16), (9 << 16) + 1], dtype=np.int64)
PROMPTS = np.asarray([4, 4, 9, 9], dtype=np.int64)


def _call(kind: Kind, method: str, params: OpParams, columns: dict[str, Column]) -> tuple[Batch, dict[str, object]]:
    op = Op(id=f"it.{method}", role="it", method=method, granularity=Granularity.SAMPLE, params=params)
    setup = RankSetup(
        role=Role(name="it", kind=kind), model=None, model_folder=None, layout=Layout(), folder=Path(), ops=(op,)
    )
    result = make_rank(setup).call(Call(op=op, step=1, seed=0), Batch(IDS, PROMPTS, columns))
    assert result.batch is not None
    return result.batch, dict(result.metrics)


def test_a_filter_gives_the_rows_that_stay() -> None:
    params = FilterParams(rule="zero_spread")
    batch, metrics = _call(Kind.FILTER, "select", params, {"rewards": np.asarray([1, 1, 0, 1], dtype=np.float32)})
    assert batch.ids.tolist() == IDS[2:].tolist()
    assert batch.prompt_ids.tolist() == [9, 9]
    assert batch.array("keep").tolist() == [True, True]
    assert metrics == {"kept": (0.5, 4.0)}


def test_a_finish_reason_is_read_as_cut_off_or_not() -> None:
    params = FilterParams(rule="truncated", unit="sample")
    ends = np.asarray([STOP, LENGTH, STOP, STOP], dtype=np.int8)
    batch, _ = _call(Kind.FILTER, "select", params, {"finish_reason": ends})
    assert batch.ids.tolist() == IDS[[0, 2, 3]].tolist()


def test_a_rule_that_nobody_has_built_is_told_when_the_rank_is_made() -> None:
    with pytest.raises(FlowError) as told:
        _call(Kind.FILTER, "select", FilterParams(rule="function"), {})
    assert told.value.diagnostics[0].code == "FR0801"


def test_rewards_add_up_by_the_weights_of_the_flow() -> None:
    params = ScoreParams(flavour="combine", extra={"combine": {"right": 1.0, "short": -0.25}})
    columns: dict[str, Column] = {
        "right": np.asarray([1, 0, 1, 0], dtype=np.float32),
        "short": np.asarray([4, 2, 0, 1], dtype=np.float32),
    }
    batch, metrics = _call(Kind.REWARD, "score", params, columns)
    assert batch.array("rewards").tolist() == [0.0, -0.5, 1.0, -0.25]
    assert batch.array("rewards").dtype == np.float32
    assert metrics == {"rewards": (0.0625, 4.0)}
