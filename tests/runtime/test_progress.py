"""What a run shows: lines without a terminal, a bar on one."""

from __future__ import annotations

import io

import pytest

from flowrl.plan.plan import StageRun
from flowrl.runtime.progress import Bar, Lines, Silent, duration, progress_view
from flowrl.runtime.steps import StepReport
from tests.runtime.plans import grpo_graph, stage_plan

STAGE = stage_plan(grpo_graph(), run=StageRun(steps=12, loggers=()))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _report(step: int, epilogue: bool = False, **metrics: float) -> StepReport:
    named = {name.replace("__", ".").replace("_at_", "@"): value for name, value in metrics.items()}
    return StepReport("grpo", step, epilogue, 2.0, named, 6480, 96, (), ())


def test_a_line_has_step_reward_speed_and_time_left() -> None:
    out = io.StringIO()
    view = progress_view(None, out)
    view.stage(STAGE, 0)
    view.step(_report(1, reward__rewards=0.4123, reward__rewards_at_val=0.5, actor_train__loss=0.1))
    view.close()
    assert out.getvalue() == "grpo  step 1/12  reward 0.412 · val 0.500 · 3,240 tokens/s · 2.0 s · left 22 s\n"


def test_the_epilogue_has_a_line_if_it_says_something() -> None:
    out = io.StringIO()
    view = Lines(out)
    view.stage(STAGE, 0)
    view.step(_report(13, epilogue=True))
    assert out.getvalue() == ""
    view.step(_report(13, epilogue=True, reward__rewards_at_val=0.75))
    assert out.getvalue().startswith("grpo  end  val 0.750")


def test_a_terminal_gets_a_bar() -> None:
    out = Terminal()
    view = progress_view(None, out)
    assert isinstance(view, Bar)
    view.stage(STAGE, 3)
    view.step(_report(4, reward__rewards=0.4123))
    view.close()
    assert "4/12" in out.getvalue()
    assert "reward 0.412" in out.getvalue()


def test_nothing_is_shown_if_nobody_wants_it() -> None:
    assert isinstance(progress_view(False, Terminal()), Silent)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59.6, "1 min 00 s"), (100, "1 min 40 s"), (7500, "2 h 05 min")]
)
def test_durations_are_in_words(seconds: float, text: str) -> None:
    assert duration(seconds) == text
