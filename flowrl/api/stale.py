"""Whether a plan still belongs to what it was made from: which of its digests has moved, and what a fresh plan changes.

Only what is there is compared: the flow, its cluster file and its profile are not needed for a run, so a plan without
them is no less whole. What a run reads (data, functions, models) is for places.py.
"""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from flowrl import __version__
from flowrl.api.compile import check_spec, plan_file
from flowrl.api.digests import code_digest, flow_digest, profile_digest
from flowrl.api.machine import CLUSTER_FILE_SUFFIXES, cluster_of
from flowrl.api.places import FLOW, folder_of, folders_of
from flowrl.api.profile import load_profile
from flowrl.diag.diagnostic import Diagnostic, FlowError, diagnose
from flowrl.plan.diff import diff
from flowrl.plan.digests import digest, digest_file
from flowrl.plan.plan import Flags, Plan, Source
from flowrl.report.diff import render_diff
from flowrl.spec import load
from flowrl.spec.flow import FlowSpec

WIDTH = 96


@dataclass(frozen=True, slots=True)
class Moved:
    """`digest` is flow, cluster, profile or code."""

    digest: str
    text: str
    is_fault: bool = False
    """Whether the flow can't be read any more: a follower of FR0707 where a file of it is gone."""


def fresh_folder(plan: Plan, file: Path) -> Path:
    """The folder from which the plan in `file` finds its files, if nothing that it was made from has moved since.

    Raises FlowError: FR0707 for each data, function, model or template file that has changed or is gone, FR0730 for
    digests that moved; the last says what a fresh plan would change, where one can be made.
    """
    found: list[Diagnostic] = []
    folder = file.parent
    try:
        folder = folder_of(plan, file)
    except FlowError as error:
        found.extend(error.diagnostics)
    flow = flow_file(plan, file)
    moved = [each for each in _moved(plan, file, flow) if not (found and each.is_fault)]
    if not found and not moved:
        return folder
    notes = _changes(plan, file, flow)
    if moved:
        lines = "\n".join(f"{each.digest}: {each.text}" for each in moved)
        names = " and ".join(f"`{each.digest}`" for each in moved)
        anew = _command(flow or "FLOW", plan.flags)
        found.append(diagnose("FR0730", None, plan=file, names=names, notes=(lines, *notes), anew=anew))
    else:
        found[-1] = replace(found[-1], notes=(*found[-1].notes, *notes))
    raise FlowError(found)


def _command(flow: Path | str, flags: Flags) -> str:
    given = [("--set", each) for each in flags.sets]
    given += [(f"--{name}", value) for name in ("cluster", "profile") if (value := getattr(flags, name)) is not None]
    return shlex.join(["flowrl", "plan", str(flow), *(word for pair in given for word in pair)])


def flow_file(plan: Plan, file: Path) -> Path | None:
    """The flow that a plan was made from, where it is found as the plan's other files are; None where it is not."""
    name = next((source.path for source in plan.sources if source.role == "flow"), None)
    places = () if name is None else (folder / name for folder in folders_of(plan, file))
    return next((place for place in places if place.is_file()), None)


def _moved(plan: Plan, file: Path, flow: Path | None) -> Iterator[Moved]:
    flags, spec = _flags_from(plan, file), None
    if flow is not None:
        try:
            spec = load(flow, flags.sets)
        except FlowError as error:
            yield Moved("flow", f"`{flow}` has faults now: {error.diagnostics[0].headline}", is_fault=True)
    code = code_digest(_now(plan, file))
    if spec is not None and flow is not None:
        yield from _flow(plan, spec, flow, code != plan.digests.code)
        yield from _cluster(plan, spec, flags)
    yield from _profile(plan, flags)
    # Of functions that changed there is FR0707, which names them.
    if code_digest(plan.sources) != plan.digests.code:
        yield Moved("code", f"the plan was made by another version of FlowRL; this is {__version__}")


def _flags_from(plan: Plan, file: Path) -> Flags:
    """The plan's flags, with their files as they are found from here or from the plan file's folder."""
    given = plan.flags

    def found(name: str | None) -> str | None:
        beside = file.parent / name if name is not None else None
        return str(beside) if name is not None and beside and not Path(name).exists() and beside.exists() else name

    is_file = given.cluster is not None and given.cluster.endswith(CLUSTER_FILE_SUFFIXES)
    cluster = found(given.cluster) if is_file else given.cluster
    return Flags(sets=given.sets, cluster=cluster, profile=found(given.profile))


def _now(plan: Plan, file: Path) -> list[Source]:
    """The plan's sources with the digests that they have now, in the first folder that has them."""
    folders = folders_of(plan, file)
    return [
        Source(
            path=source.path,
            role=source.role,
            digest=next((d for folder in folders if (d := digest_file(folder / source.path)) is not None), None),
        )
        for source in plan.sources
    ]


def _flow(plan: Plan, spec: FlowSpec, flow: Path, is_other_code: bool) -> Iterator[Moved]:
    """The same bytes mean the same to the same FlowRL; others are lowered to see whether they mean something else."""
    own = [source for source in plan.sources if source.role in FLOW]
    if not is_other_code and all(digest_file(flow.parent / source.path) == source.digest for source in own):
        return
    checked = check_spec(spec)
    if len(checked.graphs) < len(spec.stages):
        fault = next(each for each in checked.diagnostics if each.severity == "error")
        yield Moved("flow", f"`{flow}` has faults now: {fault.headline}", is_fault=True)
    elif flow_digest(spec, checked.graphs) != plan.digests.flow:
        changed = [s.path for s in own if digest_file(flow.parent / s.path) != s.digest]
        names = ", ".join(f"`{name}`" for name in changed) or f"`{flow.name}`"
        yield Moved("flow", f"{names} says something else now")


def _cluster(plan: Plan, spec: FlowSpec, flags: Flags) -> Iterator[Moved]:
    flag = flags.cluster
    if flag is not None and flag.endswith(CLUSTER_FILE_SUFFIXES) and not Path(flag).exists():
        return
    try:
        cluster = cluster_of(spec, flag)
    except FlowError as error:
        yield Moved("cluster", f"it has faults now: {error.diagnostics[0].headline}")
        return
    if digest(cluster) != plan.digests.cluster:
        now = "has other devices or figures now" if cluster.name == plan.cluster.name else f"is {cluster.name} now"
        yield Moved("cluster", f"{plan.cluster.name} {now}")


def _profile(plan: Plan, flags: Flags) -> Iterator[Moved]:
    if flags.profile is not None and not Path(flags.profile).exists():
        return
    try:
        profile = None if flags.profile is None else load_profile(flags.profile)
    except FlowError as error:
        yield Moved("profile", f"`{flags.profile}`: {error.diagnostics[0].headline}")
        return
    if profile_digest(profile) != plan.digests.profile:
        what = "the catalogues of this FlowRL" if profile is None else f"`{flags.profile}` or the catalogues"
        yield Moved("profile", f"{what} hold other figures than the plan was made with")


def _changes(plan: Plan, file: Path, flow: Path | None) -> tuple[str, ...]:
    """What a fresh plan changes; why there is none, where it can't be made."""
    if flow is None:
        return ("a fresh plan can't be made: the flow is not there",)
    flags = _flags_from(plan, file)
    try:
        fresh = plan_file(flow, flags.sets, flags.cluster, flags.profile)
    except FlowError as error:
        return (f"a fresh plan can't be made: {error.diagnostics[0].headline}",)
    text = render_diff(diff(plan, fresh, (str(file), "a fresh plan")), WIDTH)
    return (textwrap.dedent(text).rstrip("\n"),)
