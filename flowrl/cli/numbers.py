"""The commands that make profiles: `profile` measures this machine, `calibrate` refits to a run."""

from __future__ import annotations

from pathlib import Path

import click
from msgspec import to_builtins

from flowrl.cli.group import FlowCommand, voice_of
from flowrl.cli.options import output_options, profile_option
from flowrl.cli.progress import phase_view
from flowrl.cli.results import measured_lines, measured_record
from flowrl.cli.voice import INTERRUPTED, as_json, write
from flowrl.diag.diagnostic import FlowError, diagnose

profile_output = click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("profile.toml"),
    show_default=True,
    help="Write the profile here.",
)


@click.command(cls=FlowCommand)
@profile_output
@click.option("--quick", is_flag=True, help="Fewer sizes and repeats: a quarter of the time, a wider spread.")
@output_options
@click.pass_context
def profile(context: click.Context, output: Path, quick: bool, **_: object) -> None:
    """Measure what this machine achieves, for `plan --profile`. Ctrl-C keeps what is measured by then."""
    from flowrl import api

    voice = voice_of(context)
    require_folder(output)
    view = phase_view("measuring")
    try:
        measured = api.measure_machine(quick, view.tell)
    finally:
        view.close()
    if measured.figures:
        write(output, api.write_profile(api.profile_of(measured)).encode())
    told = as_json(measured_record(measured, output)) if voice.json else measured_lines(measured, output, voice.width)
    voice.data(told)
    context.exit(INTERRUPTED if measured.interrupted else 0)


@click.command(cls=FlowCommand, short_help="Refit a profile to a run, and print the error.")
@click.argument("run_folder", metavar="RUN", type=click.Path(path_type=Path))
@profile_option
@profile_output
@output_options
@click.pass_context
def calibrate(context: click.Context, run_folder: Path, profile: Path | None, output: Path, **_: object) -> None:
    """Refit a profile to the trace of the run in folder RUN, and print the error before and after.

    Constants are fitted to one half of the repeats and judged by the other. --profile: what to start from.
    """
    from flowrl import api

    voice = voice_of(context)
    require_folder(output)
    found, made = api.calibrate(run_folder) if profile is None else api.calibrate(run_folder, api.load_profile(profile))
    write(output, api.write_profile(made).encode())
    if voice.json:
        voice.data(as_json({"file": str(output), **to_builtins(found)}))
        return
    voice.data(f"{api.render_calibration(found)}\nwrote {output}; flowrl plan FLOW --profile {output}")


def require_folder(file: Path) -> None:
    """Raises FlowError FR0026 where a file could not be written, before minutes are spent on what goes into it."""
    if not file.absolute().parent.is_dir():
        raise FlowError(diagnose("FR0026", file=file, problem="there is no such folder"))
