"""A plan for machines: the content of plan.json, byte for byte. Other views may say nothing that is not in it."""

from __future__ import annotations

from flowrl.plan.io import dumps
from flowrl.plan.plan import Plan


def render_json(plan: Plan) -> str:
    """The canonical JSON of a plan, as `flowrl plan -o` writes it."""
    return dumps(plan).decode("utf-8")
