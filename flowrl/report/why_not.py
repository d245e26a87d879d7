"""The answer to `why not so?` as text. Takes a WhyNot and nothing else; gives lines of at most `width` columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from flowrl.explain.why_not import Binding, Blame, WhyNot
from flowrl.plan.changes import SIGILS
from flowrl.report.numbers import gib, seconds
from flowrl.report.page import INDENT, finish, joined, section, wrapped

MOST = 4
"""Instructions, and changes, that are told; the others are in the JSON."""
SMALLEST_SHARE = 0.02
"""Instructions whose part of the difference is smaller are left to the JSON."""


def render_why_not(answer: WhyNot, width: int = 100, color: bool = False, ascii: bool = False) -> str:
    """The answer as text ending in a newline: the verdict first, then why."""
    width = max(width, 60)
    room = width - INDENT
    lines = wrapped(f"{answer.question}: {_verdict(answer)}", width, " ", " ")
    lines += section("WHY", list(_why(answer, room)))
    lines += section("SO", _pools(answer, room))
    lines += section("HELP", _helps(answer, room) if answer.helps else [])
    lines += section("RUN", [row for text in answer.refused for row in wrapped(f"refused, {text}", room, "    ")])
    lines += section("WRITE", [row for line in answer.write for row in _written(line, room)])
    return finish(lines, width, color, ascii)


def _verdict(answer: WhyNot) -> str:
    if answer.verdict == "planned":
        return "it is what is planned"
    if answer.verdict == "impossible":
        return "no placement can be so"
    if answer.verdict == "infeasible":
        return "it DOES NOT FIT"
    if answer.verdict == "fits":
        return "it fits, which the plan does not"
    step = f"a step takes {_pair(answer.step_seconds, answer.asked_step_seconds or 0.0)}"
    price = ""
    if answer.price_per_step is not None and answer.asked_price_per_step is not None:
        price = f", and costs {answer.asked_price_per_step:,.2f} against {answer.price_per_step:,.2f}"
    words = {"equal": "it is as good", "faster": "it would be faster, and the plan may not be so or did not look there"}
    return f"{words.get(answer.verdict, f'it is {answer.verdict}')}: {step}{price}"


def _pair(before: float, after: float) -> str:
    by = after - before
    share = f" ({'+' if by >= 0 else '−'}{abs(by) / before:.1%})" if before else ""
    return f"{seconds(after)} against {seconds(before)}{share}"


def _why(answer: WhyNot, width: int) -> Iterator[str]:
    if answer.reason is not None:
        yield from wrapped(answer.reason, width)
    if answer.binding is not None:
        yield from wrapped(_binding(answer.binding), width)
    by = abs((answer.asked_step_seconds or 0.0) - answer.step_seconds)
    told = [each for each in answer.blame if abs(each.seconds - each.before_seconds) >= SMALLEST_SHARE * by]
    for each in told[:MOST]:
        yield from wrapped(_blame(each), width, "  ")


def _binding(binding: Binding) -> str:
    over = binding.peak_bytes - binding.limit_bytes
    whose = f" of {binding.role}" if binding.role else ""
    return (
        f"{binding.phase} needs {gib(binding.peak_bytes)} of {gib(binding.limit_bytes)} GiB on {binding.device} of "
        f"pool {binding.pool}, {gib(over)} GiB too much; {gib(binding.line_bytes)} GiB of it are {binding.what}{whose}"
    )


def _blame(blame: Blame) -> str:
    by = blame.seconds - blame.before_seconds
    change = f"{'+' if by >= 0 else '−'}{seconds(abs(by))}"
    if not blame.before_seconds:
        return f"{change}  {blame.what}: the step waits for it now, {seconds(blame.seconds)}"
    if not blame.seconds:
        return f"{change}  {blame.what}: the step waits for it no more, {seconds(blame.before_seconds)}"
    return f"{change}  {blame.what}: {seconds(blame.seconds)} of the step against {seconds(blame.before_seconds)}"


def _written(line: str, width: int) -> list[str]:
    """A line of a flow as it can be copied: a list that is too long goes on in the next line."""
    deeper = " " * (len(line) - len(line.lstrip()) + 4)
    return textwrap.wrap(line, width, subsequent_indent=deeper, break_long_words=False, break_on_hyphens=False)


def _pools(answer: WhyNot, width: int) -> list[str]:
    lines = [line for pool in answer.pools for line in wrapped(pool, width, "    ")]
    for change in answer.changes[: 2 * MOST]:
        values = " → ".join(each for each in (change.before, change.after) if each is not None)
        lines += wrapped(f"{SIGILS[change.effect]} {change.what}: {values}", width, "    ", "  ")
    more = len(answer.changes) - 2 * MOST
    return [*lines, f"  and {more} more in the JSON"] if more > 0 else lines


def _helps(answer: WhyNot, width: int) -> list[str]:
    return [line for text in answer.helps for row in text.splitlines() for line in joined([row], width, "    ")]
