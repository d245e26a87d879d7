"""Judges and their inner calls: a call of a judge asks its model by an op of its own, which is shown and never written.

The inner call reads what the judge is fed, fills the template and writes the model's answers; the judge's op reads
these and makes rewards of them. Takes names and ops, gives names.
"""

from __future__ import annotations

from collections.abc import Mapping

from flowrl.graph.graph import Op
from flowrl.graph.params import AskParams, ScoreParams

ASKS: Mapping[str, str] = {"score": "ask", "compare": "ask_pairs"}
"""The inner call of each op of a judge: once for each sample, once for each pair of a prompt's samples."""
ANSWERS: Mapping[str, str] = {"score": "judge_answer", "compare": "judge_answers"}
"""The column that an op of a judge reads from its inner call."""
_JUDGES = {inner: method for method, inner in ASKS.items()}


def is_inner(method: str) -> bool:
    """Whether the op is one that no edge may name."""
    return method in _JUDGES


def judge_method(method: str) -> str:
    """The method of the judge whose inner call `method` is; of any other op its own."""
    return _JUDGES.get(method, method)


def judge_of(op: Op) -> str:
    """The id of the call that makes an inner call; of any other op its own."""
    if not isinstance(op.params, AskParams):
        return op.id
    return _named(op, judge_method(op.method))


def inner_of(op: Op) -> str:
    """The id of the inner call of a judge's op."""
    return _named(op, ASKS[op.method])


def reads_answers(op: Op) -> bool:
    """Whether the op is a judge's, which makes rewards of the answers of its inner call."""
    return isinstance(op.params, ScoreParams) and op.params.flavour == "judge"


def asks_pairs(op: Op) -> bool:
    """Whether an inner call asks about two samples at once."""
    return op.method == ASKS["compare"]


def _named(op: Op, method: str) -> str:
    return f"{op.role}.{method}" + ("" if op.label is None else f"@{op.label}")
