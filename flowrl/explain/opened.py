"""What is shown of one number or decision of a plan. Frozen values; no logic."""

from __future__ import annotations

import msgspec

from flowrl.plan.plan import Decision, SearchReport


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A number below another one: the key that opens it, and its value."""

    key: str
    what: str
    value: float
    unit: str
    limit: float | None = None
    """What it must not exceed; None for what has no limit."""


class OpenedInput(msgspec.Struct, frozen=True, kw_only=True):
    """One name of a formula."""

    name: str
    value: float
    origin: str
    """`ppo.yaml:12:5`, `default`, `catalogue …`, a profile, `rule: …`, `decided D2`."""
    opens: str | None = None
    """Key of the line or decision that it stands for."""


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """A number with all that it comes from, or a decision."""

    key: str
    what: str
    value: float | None = None
    unit: str = ""
    formula: str | None = None
    again: float | None = None
    """The formula worked out anew from the inputs that are shown."""
    inputs: tuple[OpenedInput, ...] = ()
    limit: float | None = None
    parts: tuple[Part, ...] = ()
    """What adds up to it, or what there is below it."""
    adds_up: bool = False
    """Whether `parts` are its summands."""
    decision: Decision | None = None
    reasons: dict[str, str] = {}
    """Of a decision: its codes in words."""
    write: tuple[str, ...] = ()
    """Of a decision: lines of a flow that settle it by hand."""
    search: SearchReport | None = None
    """Of the choice of pools: how far the search for them went."""
    notes: tuple[str, ...] = ()
    below: tuple[Opened, ...] = ()
    """What its inputs stand for, each once."""
