"""Opens the numbers of a plan: a plan file, or a flow, which is planned first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flowrl.api.compile import plan_file
from flowrl.diag.diagnostic import FlowError, diagnose
from flowrl.explain.book import book_of
from flowrl.explain.find import find
from flowrl.explain.opened import Opened
from flowrl.explain.tree import open_entry, overview
from flowrl.plan.io import read
from flowrl.plan.plan import Plan


def plan_of(
    file: str | Path, sets: Sequence[str] = (), cluster: str | None = None, profile: str | Path | None = None
) -> Plan:
    """The plan in a plan.json, or that of a flow. Raises FlowError: FR0708 for a plan.json that is to be changed, FR07
    for one that cannot be read, every fault of a flow."""
    if Path(file).suffix != ".json":
        return plan_file(file, sets, cluster, profile)
    given = {"--set": sets, "--cluster": cluster, "--profile": profile}
    for flag in (name for name, value in given.items() if value):
        raise FlowError(diagnose("FR0708", None, flag=flag, file=file))
    return read(Path(file))


def open_number(plan: Plan, key: str | None, file: str | Path = "the plan") -> Opened:
    """What `key` of `plan` is made of; None: what there is to open. Raises FlowError FR0720 for a key that the plan has
    not, FR0721 for one that means several numbers. `file`: the plan's name in these."""
    book = book_of(plan)
    return overview(book, str(file)) if key is None else open_entry(book, find(book, key, str(file)))
