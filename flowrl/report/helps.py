"""What would help, as text: the critical circle and a line for each change. Takes Helps; gives lines."""

from __future__ import annotations

from collections.abc import Sequence

from flowrl.explain.helps import Help, Helps
from flowrl.report.numbers import seconds
from flowrl.report.page import wrapped


def render_helps(found: Sequence[Helps], width: int = 100) -> str:
    """A block for each stage, ending in a newline."""
    width = max(width, 60)
    lines: list[str] = []
    for each in found:
        name = f"stage {each.stage}: " if len(found) > 1 else ""
        lines += wrapped(f"{name}{each.text}", width, "         ", " HELPS   ")
        size = max((len(help.change.what) for help in each.helps), default=0)
        for help in each.helps:
            row = f"         {help.change.what:<{size}}  {_told(help)}"
            lines += [row] if len(row) <= width else [f"         {help.change.what}", f"             {_told(help)}"]
            lines += (
                wrapped(_flags(help), width, " " * 13, " " * 11)
                if help.verdict == "faster" and help.change.sets
                else []
            )
    return "\n".join(lines) + "\n"


def _flags(help: Help) -> str:
    """What to give the command for it."""
    return " ".join(f"--set {each}" for each in help.change.sets)


def _told(help: Help) -> str:
    if help.step_seconds is None or help.saved_seconds is None or help.saved_share is None:
        return {"does_not_fit": "does not fit", "refused": "is refused"}[help.verdict]
    if help.verdict == "same":
        return "makes no difference"
    sign = "-" if help.saved_seconds > 0 else "+"
    change = f"{sign}{seconds(abs(help.saved_seconds))} ({sign}{abs(help.saved_share):.0%})"
    return f"{change}, step {seconds(help.step_seconds)}"
