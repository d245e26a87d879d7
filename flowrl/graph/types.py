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


class Granularity(StrEnum):
    """How many rows one firing of an op takes."""

    PROMPT = "prompt"
    SAMPLE = "sample"
    GROUP = "group"
    """All samples of one prompt."""
    MINIBATCH = "minibatch"
    """step.prompts / updates prompts with all their samples."""
    STEP = "step"


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """A typed column. `dtype` is LANGUAGE.md's spelling: i8, i32, i64, f32, bool, str, messages, json, bytes[] …"""

    name: str
    unit: Unit
    dtype: str
