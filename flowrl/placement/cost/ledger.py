"""Ledger lines whose value is computed from their own formula, so that what is printed is what was counted.

Takes a formula (plain arithmetic over names) and what each name stands for; gives a LedgerLine. Knows no models.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

import msgspec

from flowrl.diag.diagnostic import InternalError
from flowrl.plan.plan import LedgerLine

Number = int | float
_Compute = Callable[[Mapping[str, Any]], float]


class Given(msgspec.Struct, frozen=True, gc=False):
    """An input of a formula: its value and where that came from (`ppo.yaml:12:5`, `default`, `decided D2`, …)."""

    value: Number
    origin: str


Inputs = Mapping[str, Given]


def line(what: str, role: str | None, unit: str, formula: str, inputs: Inputs) -> LedgerLine:
    """The line `what`, its value worked out from `formula`. Bytes are rounded up to a whole byte.

    A formula is arithmetic (`+ - * / //`, `max`, `min`, `ceil`) over the names in `inputs`; names that it does not use
    are left out of the line. Inside `numbers_only` all of them are.
    """
    compute, used = _parsed(formula)
    value = compute(inputs)
    value = float(math.ceil(value - 1e-6)) if unit == "bytes" else float(value)
    if _numbers_only.get():
        return LedgerLine(what=what, role=role, value=value, unit=unit, formula=formula)
    return LedgerLine(
        what=what,
        role=role,
        value=value,
        unit=unit,
        formula=formula,
        inputs={name: inputs[name].value for name in used},
        origins={name: inputs[name].origin for name in used},
    )


_numbers_only: ContextVar[bool] = ContextVar("numbers_only", default=False)


class numbers_only:  # noqa: N801
    """Where nobody reads a line but for its value: a search adds up thousands that no plan ever shows. What is kept of
    lines made here must not be mixed with what is kept of whole ones (`are_whole`)."""

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before = _numbers_only.set(True)

    def __exit__(self, *_: object) -> None:
        _numbers_only.reset(self._before)


def are_whole() -> bool:
    """Whether lines that are made now have their inputs."""
    return not _numbers_only.get()


def bytes_of(lines: list[LedgerLine] | tuple[LedgerLine, ...]) -> int:
    """Sum of the lines counted in bytes."""
    found = 0
    for entry in lines:
        if entry.unit == "bytes":
            found += int(entry.value)
    return found


def evaluate(formula: str, values: Mapping[str, Number]) -> float:
    """The value of a line's formula, for those who check a plan. InternalError for anything but arithmetic."""
    return _of_values(formula)(values)


@lru_cache(maxsize=512)
def _parsed(formula: str) -> tuple[_Compute, tuple[str, ...]]:
    """The formula as a function of its inputs, and the names that it uses. Compiled once, as a plan has thousands of
    lines of a few dozen formulas: Python's own arithmetic over the same tree, so the value is that of the text."""
    tree = ast.parse(formula, mode="eval").body
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - set(_CALLS)
    return _compiled(_looked_up(tree, ".value")), tuple(sorted(names))


@lru_cache(maxsize=512)
def _of_values(formula: str) -> _Compute:
    """The same of plain values."""
    return _compiled(_looked_up(ast.parse(formula, mode="eval").body, ""))


def _compiled(arithmetic: str) -> _Compute:
    # Only arithmetic is left of what a plan file may hold, and nothing can be called but three functions.
    return eval(f"lambda given: {arithmetic}", {"__builtins__": {}, **_CALLS})  # noqa: S307


_CALLS: Mapping[str, Callable[..., Number]] = {"max": max, "min": min, "ceil": math.ceil}
_OPERATORS: Mapping[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
}


def _looked_up(node: ast.expr, value: str) -> str:
    """The same arithmetic over what `given` holds under each name. InternalError for anything else."""
    match node:
        case ast.Constant(value=int() | float() as number) if number != math.inf:
            return f"{number!r}"
        case ast.Name(id=name):
            return f"given[{name!r}]{value}"
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return f"({_looked_up(left, value)} {_OPERATORS[type(op)]} {_looked_up(right, value)})"
        case ast.Call(func=ast.Name(id=name), args=arguments) if name in _CALLS:
            return f"{name}({', '.join(_looked_up(argument, value) for argument in arguments)})"
        case _:
            raise InternalError(f"a ledger formula holds {ast.dump(node)}")
