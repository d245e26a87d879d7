"""Plans a flow on another cluster than it runs on, and says what moves: a kept plan against one that was made now."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from flowrl.api.compile import plan_file
from flowrl.api.profile import load_profile
from flowrl.compiler.lower.placement import lower_placement
from flowrl.diag.diagnostic import FlowError
from flowrl.explain.find import find
from flowrl.explain.moves import Replan
from flowrl.explain.moves_book import moves_book
from flowrl.explain.opened import Opened
from flowrl.explain.replan import Known
from flowrl.explain.replan import replan as compare
from flowrl.explain.tree import open_entry, overview
from flowrl.machine.profile import PROFILE
from flowrl.machine.shape import ModelShape
from flowrl.placement.shapes import handed_on, shapes_of
from flowrl.plan.io import read
from flowrl.plan.plan import Plan
from flowrl.spec import load


def replan(
    kept: str | Path, made: Plan, file: str | Path, sets: Sequence[str] = (), profile: str | Path | None = None
) -> Replan:
    """What moves from the plan in `kept` to `made`, the plan of the flow `file` with `sets` and `profile`.

    Raises FlowError FR07 for a kept plan that cannot be read. A flow that is another one is told in the answer (FR0745,
    unless the flow allows it).
    """
    before, spec = read(Path(kept)), load(file, sets)
    rates = PROFILE if profile is None else load_profile(profile)
    earlier: dict[str, ModelShape] = {}
    known: dict[str, Known] = {}
    for index, stage in enumerate(made.stages):
        shapes = shapes_of(stage.graph, made.folder, earlier)
        earlier |= handed_on(stage.name, stage.graph, shapes)
        known[stage.name] = Known(shapes, replace(lower_placement(spec, index), profile=rates))
    found = compare(before, made, known, (str(kept), str(file)))
    told = tuple(each for each in found.diagnostics if each.code not in spec.document.allow)
    return replace(found, diagnostics=told)


def open_move(
    key: str | None,
    file: str | Path,
    kept: str | Path,
    sets: Sequence[str] = (),
    cluster: str | None = None,
    profile: str | Path | None = None,
) -> Opened:
    """What `key` of such a comparison is made of; None: what there is to open. Raises FlowError FR0720, FR0721, FR0501
    for a flow that does not fit, and as `replan` does."""
    made = plan_file(file, sets, cluster, profile)
    if made.verdict == "infeasible":
        raise FlowError(made.diagnostics)
    book = moves_book(replan(kept, made, file, sets, profile), made)
    name = f"{kept} → {file}"
    return overview(book, name) if key is None else open_entry(book, find(book, key, name))
