"""docs/reference/plan.md and plan.schema.json are as the structs are now."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowrl.diag.span import Span
from flowrl.graph.params import UpdateParams
from flowrl.plan.plan import Memory, Plan
from tools import plan_schema

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", plan_schema.PAGES)
def test_page_is_current(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert text == plan_schema.PAGES[name](), "run `python tools/plan_schema.py`"


def test_every_struct_has_a_section() -> None:
    found = plan_schema.structs(Plan)
    assert {Memory, Span, UpdateParams} <= set(found)
    text = plan_schema.page()
    assert all(f"\n## {cls.__name__}\n" in text for cls in found)
    assert len({cls.__name__ for cls in found}) == len(found), "sections are told apart by name"
