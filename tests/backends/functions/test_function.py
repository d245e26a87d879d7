"""The backend of function roles: columns in, columns out, and a multiplier that is worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowrl.backends.batch import Batch, Column, Ragged
from flowrl.backends.contract import Call, RankSetup, Result
from flowrl.backends.functions.function import FunctionRank
from flowrl.diag.diagnostic import FlowError
from flowrl.diag.span import Span
from flowrl.graph.graph import Kind, Op, Role
from flowrl.graph.params import CallParams
from flowrl.graph.types import Field, Granularity, Unit
from flowrl.plan.plan import Layout
from tests.conftest import Told

IDS = np.asarray([0, 1, 1 << 16], dtype=np.int64)
PROMPTS = np.asarray([0, 0, 1], dtype=np.int64)
USER = """
import numpy
print("hello")

def twice(response, tokens, shout=False):
    return {
        "text": [t.upper() if shout else t + t for t in response],
        "weights": [[2.0 * i for i in row] for row in tokens],
        "rewards": numpy.asarray([len(t) for t in response]),
    }

def one(response):
    return [len(t) for t in response]

def few(response):
    return response[1:]

def ragged(tokens):
    return [row[1:] for row in tokens]

def typed(response):
    return [object() for t in response]

async def later(response):
    return [1.5 for t in response]

def breaks(response):
    return [1 / 0 for t in response]
"""
FLOW = 'roles:\n  shape: {kind: function, function: "user.py:breaks", outputs: {rewards: {unit: sample, dtype: f32}}}\n'


def _op(name: str, folder: Path, outputs: Sequence[Field], args: Mapping[str, Any]) -> Op:
    return Op(
        id="shape.call",
        role="shape",
        method="call",
        granularity=Granularity.SAMPLE,
        outputs=tuple(outputs),
        params=CallParams(function=name, args=dict(args)),
        spans={"function": Span(file=str(folder / "flow.yaml"), line=2, column=37, end_line=2, end_column=53)},
    )


def _rank(op: Op, folder: Path) -> FunctionRank:
    (folder / "user.py").write_text(USER)
    (folder / "flow.yaml").write_text(FLOW)
    role = Role(name="shape", kind=Kind.FUNCTION)
    setup = RankSetup(role=role, model=None, model_folder=None, layout=Layout(), folder=folder, ops=(op,))
    return FunctionRank(setup)


def _call(rank: FunctionRank, columns: Mapping[str, Column], op: Op) -> Result:
    return rank.call(Call(op=op, step=1, seed=0), Batch(IDS, PROMPTS, columns))


def _made(
    name: str, folder: Path, outputs: Sequence[Field], columns: Mapping[str, Column], args: dict[str, Any] | None = None
) -> Batch:
    op = _op(name, folder, outputs, args or {})
    rank = _rank(op, folder)
    try:
        batch = _call(rank, columns, op).batch
    finally:
        rank.close()
    assert batch is not None
    return batch


def field(name: str, unit: Unit, dtype: str) -> Field:
    return Field(name=name, unit=unit, dtype=dtype)


TEXTS: Column = ("a", "bc", "def")
TOKENS = Ragged.of([np.asarray([1]), np.asarray([2, 3]), np.asarray([4, 5, 6])], np.int32)
REWARDS = (field("rewards", Unit.SAMPLE, "f32"),)


def test_columns_of_every_kind(tmp_path: Path) -> None:
    outputs = (field("text", Unit.SAMPLE, "str"), field("weights", Unit.TOKEN, "f32"), *REWARDS)
    batch = _made("user.py:twice", tmp_path, outputs, {"response": TEXTS, "tokens": TOKENS}, {"shout": True})
    assert batch.ids.tolist() == IDS.tolist()
    assert batch.objects("text") == ("A", "BC", "DEF")
    assert [row.tolist() for row in batch.ragged("weights").rows()] == [[2.0], [4.0, 6.0], [8.0, 10.0, 12.0]]
    assert batch.array("rewards").tolist() == [1.0, 2.0, 3.0]
    assert (batch.array("rewards").dtype, batch.ragged("weights").values.dtype) == (np.float32, np.float32)


@pytest.mark.parametrize(("name", "given"), [("user.py:one", [1.0, 2.0, 3.0]), ("user.py:later", [1.5, 1.5, 1.5])])
def test_one_column_may_be_returned_as_it_is(name: str, given: list[float], tmp_path: Path) -> None:
    assert _made(name, tmp_path, REWARDS, {"response": TEXTS}).array("rewards").tolist() == given


@pytest.mark.parametrize(
    ("name", "outputs", "columns", "words"),
    [
        ("user.py:few", REWARDS, {"response": TEXTS}, "2 values of `rewards`"),
        ("user.py:one", (*REWARDS, *REWARDS), {"response": TEXTS}, "3 values where columns"),
        ("user.py:ragged", (field("weights", Unit.TOKEN, "f32"),), {"tokens": TOKENS}, "0 values of `weights`"),
        ("user.py:typed", REWARDS, {"response": TEXTS}, "no number, text, list or mapping"),
        ("user.py:twice", (field("other", Unit.SAMPLE, "f32"),), {"response": TEXTS, "tokens": TOKENS}, "no column"),
    ],
)
def test_what_does_not_fit_is_told(
    name: str, outputs: Sequence[Field], columns: Mapping[str, Column], words: str, tmp_path: Path
) -> None:
    with pytest.raises(FlowError) as caught:
        _made(name, tmp_path, outputs, columns)
    assert caught.value.diagnostics[0].code == "FR0858"
    assert words in str(caught.value)


def test_frames(tmp_path: Path, told: Told) -> None:
    with pytest.raises(FlowError) as caught:
        _made("user.py:breaks", tmp_path, REWARDS, {"response": TEXTS})
    told(caught.value, "FR0857")
    with pytest.raises(FlowError) as caught:
        _made("user.py:few", tmp_path, REWARDS, {"response": TEXTS})
    told(caught.value, "FR0858")


def test_a_multiplier_by_hand(tmp_path: Path) -> None:
    """Two steps: ln m grows by lr x m x (mean cost - limit), first from 1, then from where it was; 3 at most."""
    args = {"cost_limit": 0.5, "start": 1.0, "lr": 0.2, "most": 3.0}
    outputs = (field("advantages", Unit.TOKEN, "f32"),)
    op = _op("flowrl:lagrange", tmp_path, outputs, args)
    rank = _rank(op, tmp_path)
    reward = Ragged.of([np.asarray([1.0]), np.asarray([2.0, 3.0]), np.asarray([0.0, 0.0, -1.0])], np.float32)
    safety = Ragged.of([np.asarray([-1.0]), np.asarray([0.0, 1.0]), np.asarray([2.0, 2.0, 2.0])], np.float32)

    def step(costs: list[float]) -> tuple[list[float], float]:
        columns = {"reward_advantages": reward, "safety_advantages": safety, "costs": np.asarray(costs, np.float32)}
        result = _call(rank, columns, op)
        assert result.batch is not None
        return result.batch.ragged("advantages").values.tolist(), result.metrics["multiplier"][0]

    made, m = step([0.0, 3.0, 1.5])
    assert m == pytest.approx(exp(0.2 * 1.0 * (1.5 - 0.5)))
    assert made[0] == pytest.approx((1.0 - m) / (1.0 + m))
    assert made[5] == pytest.approx((-1.0 + 2.0 * m) / (1.0 + m))
    _, second = step([0.5, 0.0, 0.1])
    assert second == pytest.approx(m * exp(0.2 * m * (0.2 - 0.5)))
    rank.save(tmp_path)
    _, largest = step([1000.0] * 3)
    assert largest == 3.0
    rank.restore(tmp_path)
    _, again = step([0.5, 0.5, 0.5])
    assert again == pytest.approx(second)
