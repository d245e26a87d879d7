"""The conductor: check, plan, run, resume, export. Each verb is a line or two over the rooms below.

What runs (torch, Ray) is imported inside the verbs that need it, so that planning works without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowrl.api.after import perfetto, report_run, run_page
from flowrl.api.calibrate import calibrate
from flowrl.api.compile import Checked, check_as_planned, compile_spec, plan_file
from flowrl.api.diff import diff_files, diff_with
from flowrl.api.explain import open_number, plan_of
from flowrl.api.fix import MOST_ROUNDS, Fixed, fix_once, joined
from flowrl.api.graphs import STOPS, graphs_after
from flowrl.api.helps import helps
from flowrl.api.init import init, presets
from flowrl.api.keys import Key, find_keys, near_keys
from flowrl.api.measure import measure_machine, profile_of
from flowrl.api.profile import load_profile
from flowrl.api.rehearse import rehearse
from flowrl.api.replan import open_move, replan
from flowrl.api.stale import fresh_folder
from flowrl.api.sweep import sweep
from flowrl.api.views import draw_plan
from flowrl.api.why_not import why_not
from flowrl.compiler.lower.effects import idle
from flowrl.diag.diagnostic import FlowError
from flowrl.explain.helps import Helps
from flowrl.explain.moves import Replan
from flowrl.explain.sweep import Sweep
from flowrl.graph.graph import Graph
from flowrl.graph.text import print_graph
from flowrl.machine.profile import write_profile
from flowrl.plan.changes import PlanDiff
from flowrl.plan.io import dumps, loads
from flowrl.plan.plan import Flags, Plan
from flowrl.report.calibrated import render_calibration
from flowrl.report.decided import render_decided
from flowrl.report.diff import diff_json, render_diff
from flowrl.report.helps import render_helps
from flowrl.report.opened import render_opened
from flowrl.report.ran import render_ran
from flowrl.report.replan import render_replan, replan_json
from flowrl.report.scatter import plot_sweep
from flowrl.report.show import render_graphs
from flowrl.report.sweep import render_sweep, sweep_csv, sweep_json
from flowrl.report.text import render_plan
from flowrl.report.why_not import render_why_not
from flowrl.spec import json_schema, load, to_yaml
from flowrl.spec.expand import expanded
from flowrl.spec.files import of_a_flow
from flowrl.spec.flow import FlowSpec

if TYPE_CHECKING:
    from flowrl.runtime.run import RunResult

FilePath = str | Path


def check(file: FilePath, sets: Sequence[str] = (), cluster: str | None = None) -> Checked:
    """Every fault of a flow file, as values: raises nothing that the user caused.

    Goes as far as a plan does, so that what does not fit is told too.
    """
    try:
        return check_as_planned(load(file, sets), cluster)
    except FlowError as error:
        return Checked((), error.diagnostics)


def fix(file: FilePath, sets: Sequence[str] = (), cluster: str | None = None) -> tuple[list[Fixed], Checked]:
    """Check a flow file and make every edit that is certain, until none is left: the changed files, and what the last
    check found. Only the file itself and what it includes from its own folder is changed."""
    changed: list[Fixed] = []
    for _ in range(MOST_ROUNDS):
        checked = check(file, sets, cluster)
        fixed = fix_once(checked.diagnostics, Path(file).parent)
        if not fixed:
            return changed, checked
        changed = joined(changed, fixed)
    return changed, check(file, sets, cluster)


def plan(file: FilePath, sets: Sequence[str] = (), cluster: str | None = None, profile: FilePath | None = None) -> Plan:
    """The plan of a flow file. `cluster`: a shorthand such as 16xH100-80G, a file, or None for what the flow says.
    `profile`: a file that says what devices achieve, in place of the one that FlowRL brings.

    Raises FlowError with every fault of the flow; one that does not fit gives a plan with the verdict `infeasible`.
    """
    return plan_file(file, sets, cluster, profile)


def render(
    plan: Plan, width: int = 100, color: bool = False, ascii: bool = False, flags: str = "", every: bool = False
) -> str:
    """The plan as text. `flags`: what the commands that it proposes must be given, such as `--set run.steps=10`.
    `every`: all decisions, with all that they rejected."""
    return render_plan(plan, width=width, color=color, ascii=ascii, flags=flags, every=every)


def draw(graphs: Sequence[Graph], name: str, width: int = 100, color: bool = False, ascii: bool = False) -> str:
    """The graphs of a flow's stages as drawings and tables."""
    return render_graphs(name, graphs, width=width, color=color, ascii=ascii)


def canonical(graphs: Sequence[Graph]) -> str:
    """The graphs in their canonical text; `flowrl.graph.text.parse_graph` reads each of them back."""
    titles = [f"# stage {graph.name}\n" if len(graphs) > 1 else "" for graph in graphs]
    return "\n".join(title + print_graph(graph) for title, graph in zip(titles, graphs, strict=True))


def expand(file: FilePath, sets: Sequence[str] = (), origins: bool = False) -> str:
    """The flow with its preset, included files, variables and flags worked in, as YAML.

    With `origins` every default is filled in and every value stands on a line of its own, with a comment that says
    where it came from: `preset NAME:LINE`, `FILE:LINE`, `--set` or `default`; that is to read, and may be longer than a
    flow's file. Raises FlowError FR0004 where the flow itself would be, so that what is written can be read again.
    """
    spec = load(file, sets)
    return expanded(spec, idle(spec)) if origins else of_a_flow(to_yaml(spec, idle(spec)), f"{file}, expanded")


def resolved(plan: Plan, file: FilePath, sets: Sequence[str] = ()) -> str:
    """Every value of the flow with where it came from, and what the plan decided for the keys that it left open."""
    if Path(file).suffix == ".json":
        return render_decided(plan)
    return f"{expand(file, sets, origins=True).rstrip()}\n\n{render_decided(plan)}"


def schema() -> dict[str, Any]:
    """The JSON Schema of a flow file."""
    return json_schema()


def run(
    file: FilePath,
    sets: Sequence[str] = (),
    cluster: str | None = None,
    launcher: str | None = None,
    runs: FilePath = "runs",
    profile: FilePath | None = None,
    replacements: int | None = None,
) -> RunResult:
    """Plan a flow file and run it, or run a plan.json as it is. `profile`: as for `plan`. `replacements`: times that
    lost ranks of one role are replaced with no new whole step in between; default 3.

    FR0708: `sets`, `cluster` and `profile` cannot change one. FR0707, FR0730: what it was made from has moved since.
    """
    if Path(file).suffix == ".json":
        plan = plan_of(file, sets, cluster, profile)
        folder = fresh_folder(plan, Path(file))
        return run_plan(plan, launcher=launcher, runs=runs, folder=folder, replacements=replacements)
    rates = None if profile is None else load_profile(profile)
    spec = load(file, sets)
    flags = Flags(sets=tuple(sets), cluster=cluster, profile=None if profile is None else str(profile))
    made = compile_spec(spec, cluster, profile=rates, flags=flags)
    return run_plan(made, launcher=launcher, runs=runs, spec=spec, replacements=replacements)


def run_plan(
    plan: Plan,
    launcher: str | None = None,
    runs: FilePath = "runs",
    spec: FlowSpec | None = None,
    folder: Path | None = None,
    replacements: int | None = None,
) -> RunResult:
    """Run a plan. `folder`: where its relative paths start, if not in the plan's folder from here.

    Raises FlowError: it does not fit, or names what is not built; and for what fails in the run.
    """
    if plan.verdict == "infeasible":
        raise FlowError(plan.diagnostics)
    from flowrl.api.preflight import preflight
    from flowrl.runtime.run import RunOptions
    from flowrl.runtime.run import run as run_it
    from flowrl.runtime.session import session_options

    preflight(plan)
    flow = to_yaml(spec, idle(spec)) if spec is not None else None
    how = session_options(replacements)
    return run_it(plan, RunOptions(Path(runs), None, launcher or "auto", flow, folder, session=how))


def resume(
    run_folder: FilePath,
    launcher: str | None = None,
    replacements: int | None = None,
    plan: FilePath | None = None,
) -> RunResult:
    """Continue a run from its newest checkpoint. `replacements`: as for `run`. `plan`: a plan.json of the same flow
    for other devices or in other layouts; FR0921 if it is of another one."""
    from flowrl.api.preflight import preflight
    from flowrl.runtime.resume import resume as resume_it
    from flowrl.runtime.session import session_options

    other = None if plan is None else plan_of(plan)
    if other is not None:
        preflight(other)
    return resume_it(Path(run_folder), launcher, session_options(replacements), other)


def export(run_folder: FilePath, output: FilePath, step: int | None = None, role: str | None = None) -> Path:
    """Write a checkpoint as a Hugging Face folder; gives that folder."""
    from flowrl.runtime.export import export as export_it

    return export_it(Path(run_folder), step, Path(output), role)


__all__ = [
    "STOPS",
    "Checked",
    "Fixed",
    "Helps",
    "Key",
    "PlanDiff",
    "Replan",
    "Sweep",
    "calibrate",
    "canonical",
    "check",
    "diff_files",
    "diff_json",
    "diff_with",
    "draw",
    "draw_plan",
    "dumps",
    "expand",
    "export",
    "find_keys",
    "fix",
    "graphs_after",
    "helps",
    "init",
    "load",
    "load_profile",
    "loads",
    "measure_machine",
    "near_keys",
    "open_move",
    "open_number",
    "perfetto",
    "plan",
    "plan_of",
    "plot_sweep",
    "presets",
    "profile_of",
    "rehearse",
    "render",
    "render_calibration",
    "render_diff",
    "render_helps",
    "render_opened",
    "render_ran",
    "render_replan",
    "render_sweep",
    "render_why_not",
    "replan",
    "replan_json",
    "report_run",
    "resolved",
    "resume",
    "run",
    "run_page",
    "run_plan",
    "schema",
    "sweep",
    "sweep_csv",
    "sweep_json",
    "why_not",
    "write_profile",
]
