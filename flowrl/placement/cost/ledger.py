"""Ledger lines whose value is computed from their own formula, so that what is printed is what was counted.

Takes a formula (plain arithmetic over names) and what each name stands for; gives a LedgerLine. Knows no models.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import lru_cache

import msgspec

from flowrl.diag.diagnostic import InternalError
from flowrl.plan.plan import LedgerLine

Number = int | float
_Compute = Callable[..., float]


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
    values = [inputs[name].value for name in used]
    value = compute(*values)
    value = float(math.ceil(value - 1e-6)) if unit == "bytes" else float(value)
    if _numbers_only.get():
        return LedgerLine(what=what, role=role, value=value, unit=unit, formula=formula)
    return LedgerLine(
        what=what,
        role=role,
        value=value,
        unit=unit,
        formula=formula,
        inputs=dict(zip(used, values, strict=True)),
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
    compute, used = _parsed(formula)
    return compute(*[values[name] for name in used])


@lru_cache(maxsize=512)
def _parsed(formula: str) -> tuple[_Compute, tuple[str, ...]]:
    """The formula as a function of the names that it uses, in that order: compiled once, as a plan has thousands of
    lines of a few dozen formulas. Python's own arithmetic over the same tree, so the value is that of the text."""
    tree = ast.parse(formula, mode="eval")
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - set(_CALLS)
    used = tuple(sorted(names))
    _check(tree.body)
    arguments = ast.arguments(
        posonlyargs=[ast.arg(arg=name) for name in used], args=[], kwonlyargs=[], kw_defaults=[], defaults=[]
    )
    function = ast.fix_missing_locations(ast.Expression(ast.Lambda(args=arguments, body=tree.body)))
    # Only arithmetic is left of what a plan file may hold, and nothing can be called but three functions.
    compute = eval(compile(function, "<ledger formula>", "eval"), {"__builtins__": {}, **_CALLS})  # noqa: S307
    return compute, used


_CALLS: Mapping[str, Callable[..., Number]] = {"max": max, "min": min, "ceil": math.ceil}
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv)


def _check(node: ast.expr) -> None:
    """InternalError for anything but arithmetic over numbers and names."""
    match node:
        case ast.Constant(value=int() | float()) | ast.Name():
            return
        case ast.BinOp(left=left, op=op, right=right) if isinstance(op, _OPERATORS):
            _check(left)
            _check(right)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _CALLS:
            for argument in arguments:
                _check(argument)
        case _:
            raise InternalError(f"a ledger formula holds {ast.dump(node)}")
