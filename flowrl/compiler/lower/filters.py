"""What a filter is told to decide by, as far as its own keys say it: a rule, and a range that keeps some rows.

Takes a stage and a role, keeps the problem in the stage; rows and columns are left to the passes.
"""

from __future__ import annotations

from flowrl.compiler.lower.stage import Stage
from flowrl.spec.schema import FilterRole

RANGED = ("threshold", "spread")
"""Rules that compare a number with a range."""
OF_GROUPS = ("zero_spread", "spread")
"""Rules about how far the samples of a prompt lie apart."""


def check_filter(stage: Stage, name: str, role: FilterRole) -> bool:
    """Whether the filter can decide; FR0265 at the key that is at fault where it cannot."""
    fault = _fault(role)
    if fault is None:
        return True
    key, problem, fix = fault
    span = stage.written("roles", name, key) or stage.key_span("roles", name)
    stage.refuse("FR0265", span, problem=f"`{name}` {problem}", fix=fix)
    return False


def _fault(role: FilterRole) -> tuple[str, str, str] | None:
    """Key, problem and what to write."""
    if role.rule == "function" and role.function is None:
        return "rule", "names no function", 'add `function: "FILE.py:NAME"`'
    if role.rule in OF_GROUPS and role.unit == "sample":
        return "unit", f"asks one sample for its spread (`rule: {role.rule}`)", "write `unit: group`"
    bounds = [key for key in ("min", "max") if getattr(role, key) is not None]
    if role.keep_top is not None and bounds:
        problem = f"has a fixed rate (`keep_top`) and a bounded one (`{bounds[0]}`)"
        return bounds[0], problem, "keep one of them; for both draw edges through two filters"
    if role.rule in RANGED and role.keep_top is None and not bounds:
        return "rule", "keeps every row: it has no range", "add `min`, `max` or `keep_top`"
    if role.min is not None and role.max is not None and role.min > role.max:
        return "max", f"keeps no row: none is {role.min:g} or more and {role.max:g} or less", "exchange `min` and `max`"
    return None
