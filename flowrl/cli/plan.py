"""The command `plan`: the dry run as text, as data, or drawn for a browser, a comment or another tool."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from flowrl.cli.group import FlowCommand, voice_of
from flowrl.cli.helps import helps_option, refuse_beside, tell_helps
from flowrl.cli.moves import from_option, tell_replan
from flowrl.cli.options import (
    DRAWN,
    as_flags,
    cluster_option,
    drawn_options,
    exit_code_option,
    profile_option,
    sets_option,
)
from flowrl.cli.plans import DIFFERS, tell_diff
from flowrl.cli.voice import Voice, has_color, is_ascii, write

INFEASIBLE = 4


@click.command(cls=FlowCommand)
@click.argument("file", metavar="FILE|PLAN", type=click.Path(path_type=Path))
@click.option("--against", type=click.Path(dir_okay=False, path_type=Path), metavar="PLAN", help="Print what differs.")
@from_option
@helps_option
@exit_code_option
@cluster_option
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the plan here as JSON.")
@profile_option
@sets_option
@click.option("--resolved", is_flag=True, help="Also print every value with where it came from, or who decided it.")
@click.option("-v", "--verbose", "every", is_flag=True, help="Tell every decision, with all that it rejected.")
@drawn_options
@click.pass_context
def plan(
    context: click.Context,
    file: Path,
    against: Path | None,
    kept: Path | None,
    helps: bool,
    exit_code: bool,
    cluster: str | None,
    output: Path | None,
    profile: Path | None,
    sets: tuple[str, ...],
    resolved: bool,
    every: bool,
    **_: object,
) -> None:
    """Say what runs, where, when, whether it fits and why. Needs no GPU and no weights.

    FILE is a flow, or a plan.json to be shown. --format html is a page for a browser in one file, markdown a comment
    for a pull request, mermaid, dot and svg are the dataflow.

    With --against, what differs from the plan of an earlier plan.json; with --from, what moves from it and when that
    has paid off; with --helps, what else was planned to save time, and what it would save.
    """
    from flowrl import api

    if kept is not None and against is not None:
        raise click.UsageError("--from and --against exclude each other", context)
    if exit_code and against is None:
        raise click.UsageError("--exit-code goes with --against", context)
    if helps:
        refuse_beside(context, against, kept)
    voice = voice_of(context)
    drawn = voice.format in DRAWN
    if drawn and (helps or against is not None or kept is not None):
        raise click.UsageError(f"--format {voice.format} draws the plan alone", context)
    made = api.plan_of(file, sets, cluster, profile)
    if output is not None:
        write(output, api.dumps(made))
    found = None if against is None else api.diff_with(against, made, str(file))
    if voice.sarif:
        voice.diagnostics(made.diagnostics)
    elif found is not None:
        tell_diff(voice, found)
        voice.diagnostics(made.diagnostics)
    elif kept is not None and made.verdict != "infeasible":
        found_moves = api.replan(kept, made, file, sets, profile)
        tell_replan(voice, found_moves, made.diagnostics, as_flags(cluster, sets))
    elif drawn:
        voice.data(api.draw_plan(made, voice.format, file, sets))
        Voice(width=voice.width, texts=voice.texts).diagnostics(made.diagnostics)
    elif voice.json and not helps:
        voice.data(api.dumps(made).decode())
    elif not voice.json:
        flags = as_flags(cluster, sets)
        voice.data(api.render(made, voice.width, has_color(sys.stdout), is_ascii(sys.stdout), flags, every))
        if resolved:
            voice.data(f"\n{api.resolved(made, file, sets)}")
        voice.diagnostics(made.diagnostics)
    if helps and made.verdict != "infeasible" and not voice.sarif:
        tell_helps(voice, api.helps(made, file, sets, cluster, profile))
    differs = exit_code and found is not None and found.differs
    context.exit(INFEASIBLE if made.verdict == "infeasible" else DIFFERS if differs else 0)
