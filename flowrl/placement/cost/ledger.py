"""Ledger lines whose value is computed from their own formula, so that what is printed is what was counted.

Takes a formula (plain arithmetic over names) and what each name stands for; gives a LedgerLine. Knows no models.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter

from flowrl.diag.diagnostic import InternalError
from flowrl.plan.plan import LedgerLine

Number = int | float
_Compute = Callable[[Mapping[str, Number]], float]


@dataclass(frozen=True, slots=True)
class Given:
    """An input of a formula: its value and where that came from (`ppo.yaml:12:5`, `default`, `decided D2`, …)."""

    value: Number
    origin: str


Inputs = Mapping[str, Given]


def line(what: str, role: str | None, unit: str, formula: str, inputs: Inputs) -> LedgerLine:
    """The line `what`, its value worked out from `formula`. Bytes are rounded up to a whole byte.

    A formula is arithmetic (`+ - * / //`, `max`, `min`, `ceil`) over the names in `inputs`; names that it does not use
    are left out of the line.
    """
    compute, used = _parsed(formula)
    values = {name: inputs[name].value for name in used}
    value = compute(values)
    return LedgerLine(
        what=what,
        role=role,
        value=float(math.ceil(value - 1e-6)) if unit == "bytes" else float(value),
        unit=unit,
        formula=formula,
        inputs=values,
        origins={name: inputs[name].origin for name in used},
    )


def bytes_of(lines: list[LedgerLine] | tuple[LedgerLine, ...]) -> int:
    """Sum of the lines counted in bytes."""
    return sum(int(entry.value) for entry in lines if entry.unit == "bytes")


def evaluate(formula: str, values: Mapping[str, Number]) -> float:
    """The value of a line's formula, for those who check a plan. InternalError for anything but arithmetic."""
    return _parsed(formula)[0](values)


@lru_cache(maxsize=512)
def _parsed(formula: str) -> tuple[_Compute, tuple[str, ...]]:
    tree = ast.parse(formula, mode="eval").body
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - set(_CALLS)
    return _computing(tree), tuple(sorted(names))


_CALLS: Mapping[str, Callable[..., Number]] = {"max": max, "min": min, "ceil": math.ceil}
_OPERATORS: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.FloorDiv: lambda a, b: a // b,
}


def _computing(node: ast.expr) -> _Compute:
    """A function of the values, made once for each formula: a plan has thousands of lines of a few dozen formulas."""
    match node:
        case ast.Constant(value=int() | float() as number):
            return lambda values: number
        case ast.Name(id=name):
            return itemgetter(name)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            apply, first, second = _OPERATORS[type(op)], _computing(left), _computing(right)
            return lambda values: apply(first(values), second(values))
        case ast.Call(func=ast.Name(id=name), args=arguments) if name in _CALLS:
            call, given = _CALLS[name], [_computing(argument) for argument in arguments]
            return lambda values: call(*[each(values) for each in given])
        case _:
            raise InternalError(f"a ledger formula holds {ast.dump(node)}")
