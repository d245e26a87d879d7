"""What moves from one plan to another as text and JSON: roles first, then sums, then whether it pays.

Takes a Replan and nothing else; gives lines of at most `width` columns.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from flowrl.explain.moves import (
    ANEW,
    BREAK_EVEN,
    CHECKPOINT,
    COST_AFTER,
    COST_BEFORE,
    DEVICES,
    FILES,
    GONE,
    MOVED,
    MOVING,
    NOTHING,
    PAYS,
    PRICE_AFTER,
    PRICE_BEFORE,
    SAVED,
    SHARED,
    STAYS,
    STEP_AFTER,
    STEP_BEFORE,
    STORED,
    STORED_BREAK_EVEN,
    SYNC,
    Home,
    Replan,
    RoleMove,
    StageMove,
)
from flowrl.plan.plan import LedgerLine
from flowrl.report.numbers import count, gib, rate, seconds
from flowrl.report.page import INDENT, finish, joined, section, wrapped

WAYS = {
    STAYS: "every rank has what it needs",
    DEVICES: "device to device",
    CHECKPOINT: "through a checkpoint",
    FILES: "read from the model's files",
    SYNC: "its weights come with the next hand-over",
    SHARED: "works with another role's weights",
    ANEW: "started anew",
    GONE: "is no role any more",
}


def replan_json(found: Replan) -> str:
    """All of it: the fields of Replan, each number with its ledger line."""
    return msgspec.json.format(msgspec.json.encode(found), indent=2).decode()


def render_replan(found: Replan, width: int = 100, color: bool = False, ascii: bool = False, flags: str = "") -> str:
    """The move as text ending in a newline; a block for each stage that a run may be in. `flags` are those that the new
    plan was made with: the command that may follow needs them too."""
    width = max(width, 60)
    lines = joined(_title(found), width, " ", first=" ")
    for stage in found.stages:
        if len(found.stages) > 1:
            lines += ["", f" STAGE {stage.name}"]
        lines += section("MOVES", list(_roles(stage, width - INDENT)))
        lines += section("COSTS", list(_sums(stage, width - INDENT)))
        lines += ["", *wrapped(_verdict(stage), width, " " * 11, " verdict   ")]
    if not found.stages:
        lines += ["", *wrapped("no stage of the flow is in the kept plan, so nothing moves", width, " ", " ")]
    lines += ["", *wrapped(_next(found, flags), width, " " * 11, " next      ")]
    return finish(lines, width, color, ascii)


def _title(found: Replan) -> list[str]:
    both = f"{count(found.shared_devices)} device{'s are' if found.shared_devices != 1 else ' is'} in both"
    parts = [f"{found.before} → {found.after}", f"{found.cluster_before} → {found.cluster_after}", both]
    parts += [f"digests that moved: {', '.join(found.moved_digests)}"] if found.moved_digests else []
    return [*parts, "the kept plan did not fit"] if found.verdict_before == "infeasible" else parts


def _roles(stage: StageMove, width: int) -> Iterator[str]:
    names = max((len(role.role) for role in stage.roles), default=0)
    indent = " " * (names + 2)
    for role in stage.roles:
        yield from joined(_places(role), width, indent, " → ", f"{role.role:<{names}}  ")
        yield from joined(_told(role), width, indent + "  ", first=indent)


def _places(role: RoleMove) -> list[str]:
    homes = [_home(home) for home in (role.before, role.after) if home is not None]
    return homes[:1] if len(homes) == 2 and role.before == role.after else homes


def _home(home: Home) -> str:
    where = home.first if home.first == home.last else f"{home.first} .. {home.last}"
    return f"{home.pool}: {home.layout} on {where}"


def _told(role: RoleMove) -> list[str]:
    """The way, bytes by kind and link, and seconds."""
    moved = [each for each in role.lines if each.unit == "bytes" and not each.what.startswith("moved of ")]
    spent = [each for each in role.lines if each.unit == "seconds" and each.value]
    parts = [WAYS[role.way]] + ([] if role.way == STAYS else [f"{each.what} {gib(each.value)} GiB" for each in moved])
    return parts + [_spent(each, len(spent) > 1) for each in spent]


def _spent(line: LedgerLine, several: bool) -> str:
    return f"{line.what.partition(' ')[0]} {seconds(line.value)}" if several else seconds(line.value)


def _sums(stage: StageMove, width: int) -> Iterator[str]:
    before, after = stage.value(STEP_BEFORE) or 0.0, stage.value(STEP_AFTER) or 0.0
    moving = [f"{seconds(stage.value(MOVING) or 0.0)} for {gib(stage.value(MOVED) or 0.0)} GiB, one role after another"]
    stored = stage.value(STORED)
    if stored is not None:
        moving.append(f"{seconds(stored)} through a checkpoint instead")
    saved = stage.value(SAVED) or 0.0
    word = "saves" if saved > 0 else "loses"
    step = [f"{seconds(before)} → {seconds(after)}", f"{word} {seconds(abs(saved))} a step" if saved else "as before"]
    moving.append("starting processes and engines is not counted")
    rows = {"moving": moving, "step": step}
    rows |= {"GPU-s": _change(stage, COST_BEFORE, COST_AFTER), "price": _change(stage, PRICE_BEFORE, PRICE_AFTER)}
    for name, parts in rows.items():
        if parts:
            yield from joined(parts, width, " " * 8, first=f"{name:<6}  ")


def _change(stage: StageMove, first: str, second: str) -> list[str]:
    """A figure of both steps, with the difference as a share."""
    before, after = stage.value(first), stage.value(second)
    if before is None or after is None:
        return []
    share = f"{'+' if after >= before else '−'}{abs(after - before) / before:.1%}" if before else ""
    text = rate if first == COST_BEFORE else "{:,.2f}".format
    return [f"{text(before)} → {text(after)} a step", *([share] if share else [])]


def _verdict(stage: StageMove) -> str:
    """One sentence."""
    saved, steps = stage.value(SAVED) or 0.0, count(stage.steps)
    if stage.verdict == NOTHING:
        change = f"each step saves {seconds(saved)}" if saved > 0 else f"each step takes {seconds(-saved)} longer"
        return f"nothing has to move; {change}" if saved else "nothing has to move, and a step takes as long"
    if stage.verdict != PAYS:
        change = f"takes {seconds(-saved)} longer" if saved < 0 else "takes as long as before"
        return f"moving never pays in time: each step {change}{_cheaper(stage)}"
    even = stage.break_even or 0
    if even >= stage.steps:
        return f"moving pays only after {count(even)} steps, and run.steps is {steps}{_cheaper(stage)}"
    stored = stage.value(STORED_BREAK_EVEN)
    instead = "" if stored is None else f" ({count(int(stored))} through a checkpoint)"
    return f"worth it if more than {count(even)} of the run's {steps} steps are left{instead}"


def _cheaper(stage: StageMove) -> str:
    before, after = stage.value(COST_BEFORE) or 0.0, stage.value(COST_AFTER) or 0.0
    return f"; a step costs {1 - after / before:.1%} fewer GPU-seconds" if after < before else ""


def _next(found: Replan, flags: str) -> str:
    """The command that opens a number."""
    key = BREAK_EVEN if found.stages and found.stages[0].break_even is not None else MOVING
    words = [f"flowrl explain {found.after} {key}", f"--from {found.before}", *([flags] if flags else [])]
    return " ".join(words)
