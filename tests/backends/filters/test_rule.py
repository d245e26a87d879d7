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
from flowrl.runtime.worker import part_of

IDS = np.asarray([(4 << 16), (4 << 16) + 1, (9 << 16), (9 << 16) + 1], dtype=np.int64)
PROMPTS = np.asarray([4, 4, 9, 9], dtype=np.int64)


def _call(
    kind: Kind, method: str, params: OpParams, columns: dict[str, Column], folder: Path = Path()
) -> tuple[Batch, dict[str, object]]:
    op = Op(id=f"it.{method}", role="it", method=method, granularity=Granularity.SAMPLE, params=params)
    setup = RankSetup(
        role=Role(name="it", kind=kind), model=None, model_folder=None, layout=Layout(), folder=folder, ops=(op,)
    )
    rank = make_rank(setup)
    try:
        result = rank.call(Call(op=op, step=1, seed=0), Batch(IDS, PROMPTS, columns))
    finally:
        rank.close()
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
        _call(Kind.FILTER, "select", FilterParams(rule="by_heart"), {})
    assert told.value.diagnostics[0].code == "FR0801"


def test_a_filter_that_masks_tells_of_all_rows() -> None:
    params = FilterParams(rule="threshold", unit="sample", min=0.5, action="mask")
    batch, metrics = _call(Kind.FILTER, "select", params, {"rewards": np.asarray([1, 0, 0, 1], dtype=np.float32)})
    assert batch.ids.tolist() == IDS.tolist()
    assert batch.array("keep").tolist() == [True, False, False, True]
    assert metrics == {"kept": (0.5, 4.0)}
    assert part_of(batch, None).kept is not None
    assert part_of(batch, None).kept.tolist() == IDS[[0, 3]].tolist()  # type: ignore[union-attr]


USER = """
def long(response, least=2):
    return [len(text) >= least for text in response]

def length(response):
    return {"scores": [len(text) for text in response]}

def none(response):
    return [None for _ in response]
"""
TEXTS: dict[str, Column] = {"response": ("a", "bc", "def", "gh")}


@pytest.mark.parametrize(
    ("params", "stay"),
    [
        (FilterParams(rule="function", function="user.py:long", unit="sample"), [1, 2, 3]),
        (FilterParams(rule="function", function="user.py:long", unit="sample", args={"least": 3}), [2]),
        (FilterParams(rule="function", function="user.py:long"), [2, 3]),  # a group stays if all of its samples do
        (FilterParams(rule="function", function="user.py:length", unit="sample", max=2.0), [0, 1, 3]),
        (FilterParams(rule="function", function="user.py:length", min=2.0), [2, 3]),  # means 1.5 and 2.5
        (FilterParams(rule="function", function="user.py:length", unit="sample", keep_top=0.25), [2]),
    ],
)
def test_a_function_decides(params: FilterParams, stay: list[int], tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(USER)
    batch, _ = _call(Kind.FILTER, "select", params, TEXTS, tmp_path)
    assert batch.ids.tolist() == IDS[stay].tolist()


def test_a_function_without_numbers_is_told(tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(USER)
    params = FilterParams(rule="function", function="user.py:none")
    with pytest.raises(FlowError) as told:
        _call(Kind.FILTER, "select", params, TEXTS, tmp_path)
    assert told.value.diagnostics[0].code == "FR0858"


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
