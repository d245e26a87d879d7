"""The difference of two plans as text and JSON: what changes with which effect on a run, then what it costs.

Takes a PlanDiff and nothing else; gives lines of at most `width` columns.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from flowrl.plan.changes import SECTIONS, SIGILS, Change, Effect, PlanDiff, Total
from flowrl.report.numbers import gib, rate, seconds
from flowrl.report.page import INDENT, finish, joined, section, wrapped

MEANINGS = {
    Effect.NEW: "new",
    Effect.GONE: "gone",
    Effect.RESTART: "engine restart",
    Effect.MOVE: "weights move",
    Effect.LIVE: "live update",
    Effect.RECOMPILE: "recompile only",
}
"""In the order in which a section tells its changes."""
TITLES = {"engine": "ENGINE", "program": "PROGRAM", "cluster": "CLUSTER", "warnings": "WARN"}
MOST = 16
"""Lines of a section; the others are in the JSON."""
NAMED = 4
"""Instructions named where several are told in one line."""


def diff_json(found: PlanDiff) -> str:
    """The whole difference: the fields of PlanDiff, with `differs`."""
    plain = {**msgspec.to_builtins(found), "differs": found.differs}
    return msgspec.json.format(msgspec.json.encode(plain), indent=2).decode()


def render_diff(found: PlanDiff, width: int = 100, color: bool = False, ascii: bool = False) -> str:
    """The difference as text ending in a newline. Says so where there is none."""
    width = max(width, 60)
    lines = joined([f"{found.before} → {found.after}", *_counts(found.changes)], width, " ", first=" ")
    lines += _verdict(found, width)
    for name in SECTIONS:
        rows = [each for each in found.changes if each.section == name]
        lines += section(TITLES.get(name, name.upper()), _rows(name, rows, width - INDENT))
    if not found.changes:
        lines += ["", *wrapped(_same(found), width, " ", " ")]
    totals = [each for each in found.totals if _moved(each) or (found.changes and each.what == "step")]
    lines += section("TOTALS", _totals(totals, width - INDENT))
    if found.changes:
        legend = [f"{SIGILS[each]} {MEANINGS[each]}" for each in MEANINGS if _has(found, each)]
        lines += ["", *joined(legend, width, " " * 11, first=" legend    ")]
    return finish(lines, width, color, ascii)


def _has(found: PlanDiff, effect: Effect) -> bool:
    return any(each.effect is effect for each in found.changes)


def _counts(changes: Sequence[Change]) -> list[str]:
    if not changes:
        return ["no change"]
    counts = Counter(each.effect for each in changes)
    told = ", ".join(f"{counts[effect]} {SIGILS[effect]}" for effect in MEANINGS if counts[effect])
    return [f"{len(changes)} change{'' if len(changes) == 1 else 's'}: {told}"]


def _same(found: PlanDiff) -> str:
    digests = f"; digests that moved: {', '.join(found.moved)}" if found.moved else ""
    figures = ", with other figures" if found.differs else "; nothing to rebuild"
    return f"{found.after} runs what {found.before} runs{figures}{digests}"


def _verdict(found: PlanDiff, width: int) -> list[str]:
    lines: list[str] = []
    if found.moved and found.changes:
        lines += joined([f"digests that moved: {', '.join(found.moved)}"], width, " ", first=" ")
    if found.verdict_before != found.verdict_after:
        said = "now DOES NOT FIT" if found.verdict_after == "infeasible" else "now it fits, before it did not"
        lines += joined([said], width, " ", first=" ")
    return lines


def _rows(name: str, rows: Sequence[Change], width: int) -> list[str]:
    rows = sorted(rows, key=lambda each: list(MEANINGS).index(each.effect))
    told = list(_folded(rows)) if name == "program" else [(each.effect, _told(each)) for each in rows]
    lines = [line for effect, text in told[:MOST] for line in wrapped(text, width, "    ", f"{SIGILS[effect]} ")]
    if len(told) > MOST:
        lines.append(f"  and {len(told) - MOST} more in the JSON")
    return lines


def _told(change: Change) -> str:
    """`layout of actor: dp16 → dp8 tp2 (resharded, D3, ppo.yaml:12:5)`."""
    where = f"{change.stage}/" if change.stage else ""
    values = [_short(each) for each in (change.before, change.after) if each is not None]
    facts = [change.reason.replace("_", " ")]
    facts += [change.decision] if change.decision else []
    facts += [str(change.span)] if change.span is not None else []
    return f"{where}{change.what}: {' → '.join(values)} ({', '.join(facts)})"


def _short(text: str, most: int = 72) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _folded(rows: Iterable[Change]) -> Iterable[tuple[Effect, str]]:
    """Instructions of one pool, and channels, with one effect and reason in one line: there may be dozens."""
    groups: dict[tuple[object, ...], list[Change]] = {}
    for each in rows:
        field = _field(each.what) if _many(each) else each.what
        groups.setdefault((each.effect, each.reason, each.stage, each.pool, field), []).append(each)
    for group in groups.values():
        first = group[0]
        yield first.effect, _told_together(group) if _many(first) and len(group) > 1 else _told(first)


def _told_together(group: Sequence[Change]) -> str:
    first = group[0]
    names = list(dict.fromkeys(_instruction(each.what) for each in group))
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    what = f"{_field(first.what)} of " if _field(first.what) else ""
    ids = len({each.what.partition(": ")[0] for each in group})
    where = "".join(f"{part}{mark}" for part, mark in ((first.stage, "/"), (first.pool, ": ")) if part)
    noun = "channel" if first.pool is None else "instruction"
    count = f"{ids} {noun}{'' if ids == 1 else 's'}"
    return f"{where}{what}{count}: {', '.join(names[:NAMED])}{more} ({first.reason.replace('_', ' ')})"


def _many(change: Change) -> bool:
    """Whether it is of an instruction or a channel."""
    kinds = ("instruction", "channel", "capacity", "lag", "moved")
    return change.reason.removeprefix("new_").removeprefix("gone_") in kinds


def _field(what: str) -> str:
    """`run actor_train.update 2/4: rows.stop` → `rows`."""
    return what.partition(": ")[2].partition(".")[0]


def _instruction(what: str) -> str:
    """`run actor_train.update 2/4: rows.stop` → `run actor_train.update`."""
    return re.sub(r" \d+/\d+$", "", what.partition(": ")[0])


def _totals(totals: Sequence[Total], width: int) -> list[str]:
    rows = [(_name(each), _figure(each, each.before), _after(each), _delta(each)) for each in totals]
    wide = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
    return [
        line
        for name, before, after, delta in rows
        for line in joined(
            [f"{name:<{wide[0]}}  {before:>{wide[1]}} → {after:<{wide[2]}}", *([delta] if delta else [])],
            width,
            "  ",
            "  ",
        )
    ]


def _name(total: Total) -> str:
    own = f"memory {total.pool}" if total.pool is not None else total.what
    return f"{total.stage}/{own}" if total.stage else own


def _after(total: Total) -> str:
    if total.after is None:
        return "nothing"
    limit = f" of {gib(total.limit_after)}" if total.limit_after is not None else ""
    return f"{_figure(total, total.after)}{limit}{' GiB' if total.unit == 'bytes' else ''}"


def _figure(total: Total, value: float | None) -> str:
    if value is None:
        return "nothing"
    if total.unit == "bytes":
        return gib(value)
    if total.unit == "seconds":
        return seconds(value)
    if total.unit == "devices":
        return f"{value:,.0f}"
    return f"{value:,.2f}" if total.what.startswith("price") else f"{rate(value)}/s"


def _delta(total: Total) -> str:
    """The difference with its sign, and as a share of what was."""
    if total.before is None or total.after is None:
        return ""
    by = total.after - total.before
    if not _moved(total):
        return "as before"
    share = f" ({_signed(f'{abs(by) / total.before:.1%}', by)})" if total.before else ""
    unit = " GiB" if total.unit == "bytes" else ""
    return f"{_signed(_figure(total, abs(by)), by)}{unit}{share}"


def _signed(text: str, value: float) -> str:
    return f"{'+' if value >= 0 else '−'}{text}"


def _moved(total: Total) -> bool:
    """Whether the figure differs by more than a rounding."""
    if total.before is None or total.after is None:
        return True
    return abs(total.after - total.before) > 1e-9 * max(1.0, abs(total.before))
