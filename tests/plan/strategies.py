"""Random values of any msgspec type, made from what msgspec itself says of the type. Used to make whole plans."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import strategies as st
from msgspec import inspect

WORDS = st.text(max_size=6)
NUMBERS = st.integers(-(2**53), 2**53)
REALS = st.floats(allow_nan=False, allow_infinity=False)
PLAIN: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | NUMBERS | REALS | WORDS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(WORDS, inner, max_size=2),
    max_leaves=4,
)


def values(of: Any) -> st.SearchStrategy[Any]:
    """Values of a type, containers short."""
    return _values(inspect.type_info(of))


def _values(kind: inspect.Type) -> st.SearchStrategy[Any]:
    match kind:
        case inspect.StrType():
            return WORDS
        case inspect.BoolType():
            return st.booleans()
        case inspect.IntType():
            return NUMBERS
        case inspect.FloatType():
            return REALS
        case inspect.NoneType():
            return st.none()
        case inspect.AnyType():
            return PLAIN
        case inspect.EnumType(cls=cls):
            return st.sampled_from(list(cls))
        case inspect.UnionType(types=types):
            return st.one_of(*(st.deferred(lambda each=each: _values(each)) for each in types))
        case inspect.VarTupleType(item_type=item):
            return st.lists(st.deferred(lambda: _values(item)), max_size=2).map(tuple)
        case inspect.TupleType(item_types=items):
            return st.tuples(*(_values(item) for item in items))
        case inspect.DictType(value_type=item):
            return st.dictionaries(WORDS, st.deferred(lambda: _values(item)), max_size=2)
        case inspect.StructType(cls=cls, fields=fields):
            return st.fixed_dictionaries({field.name: _values(field.type) for field in fields}).map(
                lambda given: made(cls, given)
            )
    raise AssertionError(f"no values of {kind}")


def made(cls: type[msgspec.Struct], given: dict[str, Any]) -> msgspec.Struct:
    return cls(**given)
