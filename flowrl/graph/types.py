"""Units, dtypes and fields: the columns of the sample record (LANGUAGE.md, "Kinds, ops, fields")."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Unit(StrEnum):
    """What one value of a field belongs to. Units nest: token < turn < sample < prompt."""

    TOKEN = "token"
    TURN = "turn"
    SAMPLE = "sample"
    PROMPT = "prompt"

    @property
    def rank(self) -> int:
        """0 for the finest. A field broadcasts to readers of its own rank or a lower one, never to a higher one."""
        return _UNITS[self]


class Granularity(StrEnum):
    """How many rows one firing of an op takes."""

    PROMPT = "prompt"
    SAMPLE = "sample"
    GROUP = "group"
    """All samples of one prompt."""
    MINIBATCH = "minibatch"
    """step.prompts / updates prompts with all their samples."""
    STEP = "step"

    @property
    def rank(self) -> int:
        """0 for the smallest firing. An edge streams at the coarser of its two ends."""
        return _FIRINGS[self]


_UNITS = {unit: rank for rank, unit in enumerate(Unit)}
_FIRINGS = {granularity: rank for rank, granularity in enumerate(Granularity)}


class Field(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A typed column. `dtype` is LANGUAGE.md's spelling: i8, i32, i64, f32, bool, str, messages, json, bytes[] …"""

    name: str
    unit: Unit
    dtype: str


DTYPES = (
    *("bool", "i8", "u8", "i16", "i32", "i64", "f16", "bf16", "f32", "f64"),
    *("str", "bytes", "json", "messages", "image"),
)
"""Types of one value; dims may follow in brackets."""
_NUMBERS = DTYPES[:10]


def element(dtype: str) -> str:
    """The type of one value, without dims."""
    return dtype.partition("[")[0]


NUMBER = "number"
"""What a slot takes that compares or ranks: one bool, integer or float of any width."""


def dtypes_agree(have: str, want: str | None) -> bool:
    """Whether a column of dtype `have` fits a slot that wants `want` (None: anything; NUMBER: any one number).

    Dims in brackets are free (`f32[8]` fits `f32[K]`); a `json` column is checked when it is read, not here.
    """
    if want is None or have == "json":
        return True
    if want == NUMBER:
        return have in _NUMBERS
    return _element(have) == _element(want)


def _element(dtype: str) -> str:
    base, bracket, _ = dtype.partition("[")
    return base + bracket
