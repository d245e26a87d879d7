"""Where a plan file's relative paths start, and whether what it was made from is still there as it was."""

from __future__ import annotations

from pathlib import Path

from flowrl.diag.diagnostic import Diagnostic, FlowError, diagnose
from flowrl.plan.digests import digest_file
from flowrl.plan.plan import Plan, Source

FLOW = ("flow", "include")
"""Roles of files that a plan holds the whole of."""


def folder_of(plan: Plan, file: Path) -> Path:
    """The folder from which the plan in `file` finds its functions, data and models, each with the digest it had.

    Tried in turn: the plan's folder from here, the same from the plan file's folder, and the plan file's folder itself.
    The flow's own file may have changed or be gone: all of it is in the plan. Raises FlowError FR0707.
    """
    folders = folders_of(plan, file)
    needed = [source for source in plan.sources if source.role not in FLOW and source.digest is not None]
    places = [(folder, {source.path: digest_file(folder / source.path) for source in needed}) for folder in folders]
    for folder, found in places:
        if all(found[source.path] == source.digest for source in needed):
            return folder
    # The folder that has most of the files is the one that was meant.
    _, nearest = min(places, key=lambda place: sum(digest is None for digest in place[1].values()))
    raise FlowError(
        _fault(source, nearest[source.path], folders) for source in needed if nearest[source.path] != source.digest
    )


def folders_of(plan: Plan, file: Path) -> tuple[Path, ...]:
    """Where the files of the plan in `file` are looked for, in turn."""
    return tuple(dict.fromkeys((Path(plan.folder), file.parent / plan.folder, file.parent)))


def _fault(source: Source, found: str | None, folders: tuple[Path, ...]) -> Diagnostic:
    problem = "is not there" if found is None else "has changed since the plan was made"
    names = ", ".join(f"`{folder}`" for folder in folders)
    return diagnose("FR0707", None, role=source.role, path=source.path, problem=problem, folders=names)
