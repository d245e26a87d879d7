"""A plan as text: one screen that answers what runs, where, when, whether it fits, and why.

Takes a Plan and nothing else, so that it can never know more than the JSON; gives lines of at most `width` columns.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePath

from flowrl.diag.diagnostic import Diagnostic, Severity
from flowrl.graph.graph import Kind
from flowrl.machine.cluster import Cluster, NodeGroup
from flowrl.plan.plan import Memory, Plan, StagePlan
from flowrl.report.dataflow import dataflow
from flowrl.report.fits import fits, fullness, largest
from flowrl.report.glance import glance, of_limit
from flowrl.report.numbers import count
from flowrl.report.page import INDENT, finish, joined, kept, section, wrapped
from flowrl.report.when import when
from flowrl.report.where import where
from flowrl.report.why import why

INFEASIBLE = "infeasible"


def render_plan(
    plan: Plan, width: int = 100, color: bool = False, ascii: bool = False, flags: str = "", every: bool = False
) -> str:
    """The plan as text ending in a newline; a block for each stage. `width` is at least 60. `flags` are those that it
    was made with, as a shell reads them: the commands that may follow need them too. `every`: all decisions."""
    width = max(width, 60)
    lines = joined(_title(plan), width, " ", first=" ")
    lines += _verdict(plan, width)
    lines += ["", *glance(plan, width)]
    for place, stage in enumerate(plan.stages):
        lines += ["", *joined(_stage_title(plan, place), width, " ", first=" ")] if len(plan.stages) > 1 else [""]
        lines += _stage(stage, plan.cluster, width, every)
    lines += _warnings(plan.diagnostics, width)
    lines += ["", *joined(_next(plan, flags), width, " " * 11, first=" next      ")]
    return finish(lines, width, color, ascii)


def _title(plan: Plan) -> list[str]:
    return [plan.name, f"flow {plan.digests.flow[:8]}", *_machine(plan.cluster)]


def _machine(cluster: Cluster) -> list[str]:
    return [_group(group) for group in cluster.groups]


def _group(group: NodeGroup) -> str:
    nodes = f"{count(group.nodes)} node{'' if group.nodes == 1 else 's'}"
    return f"{nodes} of {count(group.devices_per_node)} × {group.device.name}"


def _verdict(plan: Plan, width: int) -> list[str]:
    """For a plan that does not fit: the phase that binds, what fills it, and what would help."""
    if plan.verdict != INFEASIBLE:
        return []
    over = [memory for stage in plan.stages for memory in stage.memory if memory.peak_bytes > memory.limit_bytes]
    binding = max(over, key=fullness, default=None)
    lines = ["", *_binding(binding, width)] if binding is not None else ["", " DOES NOT FIT"]
    helps = [help.text for d in plan.diagnostics if d.severity is Severity.ERROR for help in d.helps]
    told = [line for text in helps for line in text.splitlines()]
    return [*lines, *(line for text in told for line in kept(text, width, "       ", "     "))]


def _binding(memory: Memory, width: int) -> list[str]:
    text = f"{memory.phase} needs {of_limit(memory)} in pool {memory.pool} on {memory.device}"
    lines = wrapped(text, width, "     ", " DOES NOT FIT  ")
    return [*lines, *joined(largest(memory, None), width, "     ", first="     ")]


def _stage_title(plan: Plan, place: int) -> list[str]:
    stage = plan.stages[place]
    started = [f"{model} from {source}" for model, source in stage.starts_from.items()]
    return [f"STAGE {stage.name}", *started]


def _stage(stage: StagePlan, cluster: Cluster, width: int, every: bool) -> list[str]:
    room = width - INDENT
    return [
        *joined(_batch(stage), width, " ", first=" "),
        *section("WHAT", dataflow(stage.graph, room)),
        *section("WHERE", where(stage, cluster, room)),
        *section("WHEN", when(stage, room, legend=every)),
        *section("FITS", fits(stage, room)),
        *section("WHY", why(stage.decisions, room, every)),
    ]


def _batch(stage: StagePlan) -> Iterable[str]:
    step = stage.graph.step
    samples = f" × {count(step.samples_per_prompt)} samples" if step.samples_per_prompt > 1 else ""
    parts = [f"{count(stage.run.steps)} steps of {count(step.prompts)} prompts{samples}"]
    if step.updates > 1:
        parts.append(f"{count(step.updates)} updates a step{_minibatch(stage)}")
    if step.epochs > 1:
        parts.append(f"{count(step.epochs)} epochs a step")
    if stage.run.checkpoint_every_steps is not None:
        parts.append(f"checkpoint every {count(stage.run.checkpoint_every_steps)} steps")
    return parts


def _minibatch(stage: StagePlan) -> str:
    """` of 128/4 prompts`: minibatches are counted in prompts, with all their samples. Nothing where a filter changes
    what arrives."""
    if any(role.kind is Kind.FILTER for role in stage.graph.roles):
        return ""
    return f" of {count(stage.graph.step.prompts)}/{count(stage.graph.step.updates)} prompts"


def _warnings(diagnostics: Iterable[Diagnostic], width: int) -> list[str]:
    codes = list(dict.fromkeys(d.code for d in diagnostics if d.severity is Severity.WARNING))
    if not codes:
        return []
    return ["", *joined([", ".join(codes), "told in full below"], width, " " * 11, first=" warnings  ")]


def _next(plan: Plan, flags: str) -> list[str]:
    """The commands that may follow; a file name is the user's."""
    file = next((str(PurePath(plan.folder, source.path)) for source in plan.sources if source.role == "flow"), "FILE")
    file = f"{file} {flags}".rstrip()
    if plan.verdict == INFEASIBLE:
        return [f"flowrl plan {file}", "flowrl plan --help"]
    return [f"flowrl run {file}", f"flowrl plan {file} -o plan.json", f"flowrl plan {file} --format json"]
