"""A plan for a comment on a pull request: GitHub draws its Mermaid, folds its details and lines up its tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flowrl.diag.diagnostic import Severity
from flowrl.plan.plan import Decision, Plan, StagePlan
from flowrl.report.exports import render_mermaid
from flowrl.report.fits import fullness, largest, tightest_by_device
from flowrl.report.numbers import count, gib, percent
from flowrl.report.view import PoolView, StageView, plan_view

_LARGEST = 4


def render_markdown(plan: Plan) -> str:
    """Headline, verdict and warnings; the dataflow; where, when and whether it fits as tables; decisions folded."""
    view = plan_view(plan)
    fits = "fits" if plan.verdict == "fits" else "**does not fit**"
    lines = [f"### {_text(plan.name)}: {fits} on {_text(view.cluster)}", ""]
    lines += _told(plan)
    lines += ["```mermaid", render_mermaid(plan).rstrip("\n"), "```", ""]
    for stage, shown in zip(plan.stages, view.stages, strict=True):
        lines += _stage(stage, shown, several=len(plan.stages) > 1)
    lines += [f"<sub>flow {plan.digests.flow[:8]}, made by `flowrl plan --format markdown`</sub>"]
    return "\n".join(lines) + "\n"


def _told(plan: Plan) -> list[str]:
    lines: list[str] = []
    for diagnostic in plan.diagnostics:
        word = "error" if diagnostic.severity is Severity.ERROR else "warning"
        lines.append(f"- **{word} {diagnostic.code}**: {_text(diagnostic.headline)}")
        lines += [
            f"  - {_text(line)}" for help_ in diagnostic.helps for line in help_.text.splitlines() if line.strip()
        ]
    return [*lines, ""] if lines else []


def _stage(stage: StagePlan, shown: StageView, several: bool) -> Iterator[str]:
    if several:
        yield from (f"#### Stage {_text(stage.name)}", "")
    yield from (*_table(("", ""), [(name, value) for name, value in shown.figures]), "")
    rows = [row for pool in shown.pools for row in _where(pool)]
    yield from (*_table(("pool", "devices", "busy", "role", "backend", "layout"), rows), "")
    tight = tightest_by_device(stage.memory)
    memory = [
        (
            f"{each.pool} {each.device}",
            f"{gib(each.peak_bytes)} of {gib(each.limit_bytes)} GiB ({percent(fullness(each))})",
            each.phase,
            " · ".join(largest(each, _LARGEST)),
        )
        for each in tight
    ]
    yield from (*_table(("memory of", "peak", "in", "of it"), memory), "")
    yield from _decisions(stage.decisions)


def _where(pool: PoolView) -> Iterator[tuple[str, ...]]:
    size = f"{count(len(pool.devices))} × {pool.device}" if pool.devices else "host"
    for place, each in enumerate(pool.roles):
        notes = f"{each.layout}{', ' if each.layout and each.notes else ''}{', '.join(each.notes)}"
        first = (pool.name, size, percent(pool.busy)) if place == 0 else ("", "", "")
        yield (*first, each.role, each.backend, notes)


def _decisions(decisions: Sequence[Decision]) -> Iterator[str]:
    if not decisions:
        return
    yield from ("<details><summary>Why so: " + f"{count(len(decisions))} decisions</summary>", "")
    for each in decisions:
        override = f"; override `{each.override}`" if each.override else ""
        yield f"- **{each.id}** {_text(each.text)} ({each.reason.replace('_', ' ')}{override})"
        for other in each.rejected:
            delta = f", {other.delta}" if other.delta else ""
            yield f"  - not {_text(other.option)}: {other.reason.replace('_', ' ')}{_text(delta)}"
    yield from ("", "</details>", "")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    if not rows:
        return []
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return [*lines, *("| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows)]


def _cell(text: str) -> str:
    return _text(text).replace("|", "\\|").replace("\n", " ")


def _text(text: str) -> str:
    """As it is, where Markdown or HTML would read marks."""
    for mark in ("\\", "`", "*", "<", "~"):
        text = text.replace(mark, "&lt;" if mark == "<" else f"\\{mark}")
    return text
