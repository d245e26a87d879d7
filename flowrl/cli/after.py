"""The commands after a run: `report` puts it beside its plan, `trace` writes what Perfetto opens."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from msgspec import to_builtins

from flowrl.cli.group import FlowCommand, voice_of
from flowrl.cli.options import output_options, page_options
from flowrl.cli.voice import as_json, has_color, is_ascii, write


@click.command(cls=FlowCommand, short_help="Put a run beside its plan: times, and its metrics.")
@click.argument("run_folder", metavar="RUN", type=click.Path(path_type=Path))
@page_options
@click.pass_context
def report(context: click.Context, run_folder: Path, **_: object) -> None:
    """Put the run in folder RUN beside its plan: estimated and measured times, and its metrics.

    --format html is the plan's page with both times to switch between.
    """
    from flowrl import api

    voice = voice_of(context)
    if voice.format == "html":
        voice.data(api.run_page(run_folder))
        return
    found = api.report_run(run_folder)
    if voice.json:
        voice.data(as_json(to_builtins(found)))
    else:
        voice.data(api.render_ran(found, voice.width, has_color(sys.stdout), is_ascii(sys.stdout)))


@click.command(cls=FlowCommand, short_help="Write what a run did when, for ui.perfetto.dev.")
@click.argument("run_folder", metavar="RUN", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("perfetto.json"),
    show_default=True,
    help="Write the trace here.",
)
@output_options
@click.pass_context
def trace(context: click.Context, run_folder: Path, output: Path, **_: object) -> None:
    """Write what the run in folder RUN did when, and the planned step beside it, for ui.perfetto.dev."""
    from flowrl import api

    voice = voice_of(context)
    write(output, api.perfetto(run_folder))
    voice.data(as_json({"trace": str(output)}) if voice.json else f"wrote {output}; open it in ui.perfetto.dev")
