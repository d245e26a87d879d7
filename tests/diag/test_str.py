"""What a diagnostic and a FlowError print as: of a script that builds a flow, its user sees the traceback alone."""

from __future__ import annotations

from flowrl.diag.diagnostic import FlowError, Help, Label, diagnose
from flowrl.diag.span import Span


def test_a_diagnostic_prints_its_places_and_its_helps() -> None:
    span = Span("flow.py", 7, 5, 7, 8)
    told = diagnose(
        "FR0103",
        span,
        also=[Label(Span("flow.py", 3, 1, 3, 2), "from here")],
        helps=[Help(text="a near one", span=span, replacement="  flow.step(prompts=4)")],
        parent="`step`",
    )
    assert str(told).splitlines() == [
        "error[FR0103]: unknown key",
        "  flow.py:7:5: not a key of `step`",
        "  flow.py:3:1: from here",
        "  help: a near one: flow.step(prompts=4)",
    ]


def test_a_flow_error_prints_all_that_it_tells() -> None:
    first, second = diagnose("FR0001", file="a.yaml", wanted="a path"), diagnose("FR0016", Span("b.yaml", 1, 2, 1, 3))
    text = str(FlowError([first, second]))
    assert text == f"{first}\n{second}"
    assert "`a.yaml` does not exist" in text
    assert "b.yaml:1:2: `<<` takes a mapping" in text
