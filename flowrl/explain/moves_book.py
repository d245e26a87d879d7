"""Every number of a move under a key of its own: `moving`, `break-even`, `ROLE`, `ROLE.WHAT`; with several stages
`STAGE/` before it. Takes a Replan and the plan that is moved to, gives entries like those of a plan."""

from __future__ import annotations

from collections.abc import Iterator

from flowrl.explain.book import Book, Entry
from flowrl.explain.moves import Replan, StageMove
from flowrl.plan.plan import LedgerLine, Plan, StagePlan


def moves_book(found: Replan, made: Plan) -> Book:
    """The entries by key: sums first, then the roles."""
    stages = {stage.name: stage for stage in made.stages}
    several = len(made.stages) > 1
    entries = [
        entry
        for move in found.stages
        for entry in _entries(move, stages[move.name], f"{move.name}/" if several else "")
    ]
    return {entry.key: entry for entry in entries}


def _entries(move: StageMove, stage: StagePlan, prefix: str) -> Iterator[Entry]:
    lines: list[tuple[tuple[str, ...], LedgerLine]] = [((line.what,), line) for line in move.lines]
    for role in move.roles:
        own = [*role.lines, *(each for each in role.instead if each not in role.lines)]
        lines += [((role.role, line.what.removesuffix(f" {role.role}").removesuffix(" of")), line) for line in own]
    made = tuple(Entry(path=path, stage=stage, prefix=prefix, line=line) for path, line in lines)
    for entry in made:
        yield Entry(path=entry.path, stage=stage, prefix=prefix, line=entry.line, siblings=made)
