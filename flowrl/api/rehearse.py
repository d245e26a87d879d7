"""Rehearses a plan on this machine: api over runtime/rehearsal.py. Imports what runs only when it is called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flowrl.api.explain import plan_of
from flowrl.api.stale import fresh_folder
from flowrl.diag.diagnostic import FlowError

if TYPE_CHECKING:
    from flowrl.runtime.rehearsal import Rehearsal
    from flowrl.runtime.rehearse import Change


def rehearse(
    file: str | Path,
    sets: Sequence[str] = (),
    cluster: str | None = None,
    launcher: str | None = None,
    runs: str | Path = "runs",
    profile: str | Path | None = None,
    *,
    steps: int = 2,
    ranks: int = 2,
    engine: str = "hf",
    on_changes: Callable[[tuple[Change, ...]], None] | None = None,
) -> Rehearsal:
    """Run the plan of a flow, or a plan.json, on this machine's CPU: small models, few rows, `steps` steps, at most
    `ranks` ranks a role, `engine` for what generates. `on_changes` is told what is not as in the plan, before it runs.

    Raises FlowError as `run` does: for a plan that does not fit, for what is not built, for what fails on the way.
    """
    plan = plan_of(file, sets, cluster, profile)
    if plan.verdict == "infeasible":
        raise FlowError(plan.diagnostics)
    folder = fresh_folder(plan, Path(file)) if Path(file).suffix == ".json" else None
    from flowrl.api.preflight import preflight
    from flowrl.runtime.rehearsal import RehearsalOptions
    from flowrl.runtime.rehearsal import rehearse as rehearse_it
    from flowrl.runtime.rehearse import Small

    options = RehearsalOptions(
        small=Small(steps=steps, ranks=ranks, engine=engine),
        launcher=launcher or "auto",
        runs=Path(runs),
        folder=folder,
        check=preflight,
        on_changes=on_changes or (lambda changes: None),
    )
    return rehearse_it(plan, options)
