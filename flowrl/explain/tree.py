"""Opens an entry: its formula with each input and where that came from, worked out anew, and what inputs stand for.

Takes an Entry and its Book, gives an Opened. An input stands for a decision where its origin says so (`decided D3`),
for a line beside it where its origin is that line's name, and for the step where it is the step's seconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from flowrl.execution.expand import is_plain
from flowrl.explain.book import Book, Entry, ops_run
from flowrl.explain.decided import search_notes, to_write, words
from flowrl.explain.opened import Opened, OpenedInput, Part
from flowrl.placement.cost.ledger import evaluate
from flowrl.plan.plan import Decision, LedgerLine

DEEPEST = 8
"""Lines within lines; nothing of a plan is deeper."""


def open_entry(book: Book, entry: Entry) -> Opened:
    """All there is to know of `entry`."""
    return _open(book, entry, set(), DEEPEST)


def overview(book: Book, name: str) -> Opened:
    """What there is to open in a plan, at the top."""
    tops = [entry for entry in book.values() if len(entry.path) == 1 and not is_device(entry)]
    notes = [f"{e.key}: {e.decision.text}" for e in tops if e.decision is not None]
    parts = tuple(_part(book, entry) for entry in tops if entry.decision is None)
    return Opened(key=name, what="plan", parts=parts, notes=tuple(notes))


def is_device(entry: Entry) -> bool:
    """Whether it is one device of a pool: a cluster has thousands of them."""
    return any(entry.path[0] in pool.devices for pool in entry.stage.pools)


def _open(book: Book, entry: Entry, told: set[str], deep: int) -> Opened:
    told.add(entry.key)
    if entry.decision is not None:
        return _open_decision(entry, entry.decision)
    if entry.line is not None:
        return _open_line(book, entry, entry.line, told, deep)
    parts = tuple(_part(book, book[key]) for key in entry.below)
    if entry.memory is not None:
        memory = entry.memory
        return Opened(
            key=entry.key,
            what=f"memory of {memory.device} in {memory.phase}",
            value=float(memory.peak_bytes),
            unit="bytes",
            limit=float(memory.limit_bytes),
            parts=parts,
            adds_up=True,
        )
    if entry.work is not None:
        return _open_work(book, entry, parts)
    fullest = max(parts, key=lambda part: part.value / part.limit if part.limit else 0.0, default=None)
    peak = None if fullest is None or fullest.limit is None else fullest
    return Opened(
        key=entry.key,
        what="what it holds" if peak is None else f"peak, in {peak.what}",
        value=None if peak is None else peak.value,
        unit="" if peak is None else peak.unit,
        limit=None if peak is None else peak.limit,
        parts=parts,
    )


def _open_decision(entry: Entry, decision: Decision) -> Opened:
    is_pools = decision.what == "pools"
    codes = dict.fromkeys((decision.reason, *(each.reason for each in decision.rejected)))
    return Opened(
        key=entry.key,
        what=decision.what,
        decision=decision,
        reasons={code: words(code) for code in codes},
        write=to_write(entry.stage, decision),
        search=entry.stage.search if is_pools else None,
        notes=search_notes(entry.stage.search) if is_pools else (),
    )


def _open_work(book: Book, entry: Entry, parts: tuple[Part, ...]) -> Opened:
    assert entry.work is not None
    seconds = sum(line.value for line in entry.work.lines)
    own = [id for id in entry.work.instructions if _belongs(entry, id)]
    firings = f"{len(own)} firings a step, each" if len(own) > 1 else ""
    critical = [id for id in own if id in entry.stage.estimate.critical]
    bounds = f"{len(critical)} of them bound the step" if len(own) > 1 else "bounds the step"
    notes = [note for note in (firings, bounds if critical else "does not bound the step") if note]
    phases = [key for key, e in book.items() if e.memory is not None and e.prefix == entry.prefix]
    notes += [f"its memory: {key}" for key in phases if key.endswith(f".{entry.path[0]}")]
    return Opened(
        key=entry.key, what="seconds", value=seconds, unit="seconds", parts=parts, adds_up=True, notes=tuple(notes)
    )


def _belongs(entry: Entry, id: str) -> bool:
    ops = ops_run(entry.stage)
    return (ops.get(id) or id.removeprefix("run ")) == entry.path[0]


def _part(book: Book, entry: Entry) -> Part:
    """One line of what is below another entry; of a pool or a device its fullest phase."""
    name = entry.path[-1]
    if entry.line is not None:
        role = f" of {entry.line.role}" if entry.line.role else ""
        return Part(key=entry.key, what=entry.line.what + role, value=entry.line.value, unit=_unit(entry.line))
    if entry.memory is not None:
        peak, limit = float(entry.memory.peak_bytes), float(entry.memory.limit_bytes)
        return Part(key=entry.key, what=entry.memory.phase, value=peak, unit="bytes", limit=limit)
    if entry.work is not None:
        seconds = sum(line.value for line in entry.work.lines)
        return Part(key=entry.key, what=name, value=seconds, unit="seconds")
    below = [_part(book, book[key]) for key in entry.below]
    fullest = max(below, key=lambda part: part.value / part.limit if part.limit else 0.0, default=None)
    if fullest is None:
        return Part(key=entry.key, what=name, value=0.0, unit="seconds")
    return Part(key=entry.key, what=name, value=fullest.value, unit=fullest.unit, limit=fullest.limit)


def _unit(line: LedgerLine) -> str:
    return {"s": "seconds"}.get(line.unit, line.unit)


def _open_line(book: Book, entry: Entry, line: LedgerLine, told: set[str], deep: int) -> Opened:
    inputs: list[OpenedInput] = []
    below: list[Opened] = []
    for name, value in line.inputs.items():
        origin = line.origins.get(name, "not said")
        opens = _stands_for(book, entry, name, float(value), origin)
        inputs.append(OpenedInput(name=name, value=value, origin=origin, opens=opens))
        if opens is not None and opens not in told and deep > 0:
            below.append(_open(book, book[opens], told, deep - 1))
    step = _critical(book, entry) if line.what == "step" else ()
    return Opened(
        key=entry.key,
        what=f"{line.what} of {line.role}" if line.role else line.what,
        value=line.value,
        unit=_unit(line),
        formula=line.formula,
        again=evaluate(line.formula, line.inputs),
        inputs=tuple(inputs),
        parts=step,
        adds_up=bool(step) and abs(sum(part.value for part in step) - line.value) <= 1e-6 * line.value,
        notes=("of the circle of instructions that bounds the step:",) if step else (),
        below=tuple(below),
    )


def _stands_for(book: Book, entry: Entry, name: str, value: float, origin: str) -> str | None:
    """The key of what an input stands for, if the plan has it."""
    decided = re.fullmatch(r"decided (D\d+)", origin)
    if decided:
        key = entry.prefix + decided.group(1)
        return key if key in book else None
    if name == "step_seconds" or (origin == "simulated" and name == "seconds"):
        key = f"{entry.prefix}step"
        return key if key in book and key != entry.key else None
    for other in entry.siblings:
        if other.key != entry.key and other.line is not None and _is_line(other.line, value, origin):
            return other.key
    return None


def _is_line(line: LedgerLine, value: float, origin: str) -> bool:
    return origin == line.what and abs(line.value - value) <= 1e-9 * max(1.0, abs(value))


def _critical(book: Book, entry: Entry) -> tuple[Part, ...]:
    """The instructions that the step waits for, each under the key that opens it."""
    return tuple(_critical_parts(book, entry))


def _critical_parts(book: Book, entry: Entry) -> Iterator[Part]:
    ops = ops_run(entry.stage)
    seldom = {each.id for each in entry.stage.programs.instructions if not is_plain(each)}
    for id in (each for each in entry.stage.estimate.critical if each not in seldom):
        seconds = entry.stage.estimate.durations.get(id, 0.0)
        key = entry.prefix + (ops.get(id) or id.removeprefix("run "))
        yield Part(key=key if key in book else id, what=id, value=seconds, unit="seconds")
