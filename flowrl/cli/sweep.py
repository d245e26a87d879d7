"""The command `sweep`: plans a flow at many points, prints the table, and writes table and plot into a folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from flowrl.cli.group import FlowCommand, voice_of
from flowrl.cli.options import cluster_option, profile_option
from flowrl.cli.progress import phase_view
from flowrl.cli.voice import INTERRUPTED, Voice, has_color, is_ascii, write
from flowrl.diag.catalogue import CODES
from flowrl.diag.diagnostic import FlowError, diagnose

if TYPE_CHECKING:
    from flowrl.api import Sweep

OBJECTIVES = ("step_time", "gpu_seconds", "price", "gpus")


@click.command(cls=FlowCommand, short_help="Plan FILE with every combination of these values.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--gpus", multiple=True, metavar="N,…", help="Numbers of GPUs: 8,16,32; of a group of nodes GROUP=8,16.")
@click.option("--gpu", multiple=True, metavar="NAME,…", help="Kinds of GPUs: H100-80G,H20; of a group GROUP=H20.")
@click.option(
    "--set", "sets", multiple=True, metavar="KEY=V,…", help="Override a key of the flow, by each value in turn."
)
@click.option("--price", "prices", multiple=True, metavar="NAME=X", help="What an hour of one GPU costs: H100-80G=2.5.")
@click.option("--objective", type=click.Choice(OBJECTIVES), help="What placement minimises, in place of the flow's.")
@cluster_option
@profile_option
@click.option("-o", "--output", type=click.Path(file_okay=False, path_type=Path), help="Folder for table and plot.")
@click.option(
    "--format",
    type=click.Choice(["text", "json", "csv"]),
    default="text",
    show_default=True,
    help="Form of the output.",
)
@click.option("--width", type=click.IntRange(60, 300), metavar="COLUMNS", help="Width of text output.")
@click.pass_context
def sweep(
    context: click.Context,
    file: Path,
    gpus: tuple[str, ...],
    gpu: tuple[str, ...],
    sets: tuple[str, ...],
    prices: tuple[str, ...],
    objective: str | None,
    cluster: str | None,
    profile: Path | None,
    output: Path | None,
    **_: object,
) -> None:
    """Plan FILE with every combination of these values, and mark what nothing beats in both time and cost.

    A combination that does not fit is a row with its code. Ctrl-C prints what is done.
    """
    from flowrl import api

    voice = voice_of(context)
    if output is not None:
        make_folder(output)
    view = phase_view("planning")
    try:
        found = api.sweep(
            file,
            gpus,
            gpu,
            sets,
            objective=objective,
            prices=prices,
            cluster=cluster,
            profile=profile,
            tell=view.tell,
        )
    finally:
        view.close()
    if output is not None:
        write(output / "sweep.json", api.sweep_json(found).encode())
        write(output / "sweep.csv", api.sweep_csv(found).encode())
        write(output / "sweep.svg", api.plot_sweep(found).encode())
    tell_sweep(voice, found, output)
    context.exit(INTERRUPTED if found.interrupted else 0 if found.fits else none_fits(found))


def tell_sweep(voice: Voice, found: Sweep, output: Path | None) -> None:
    from flowrl import api

    if voice.json:
        voice.data(api.sweep_json(found))
    elif voice.format == "csv":
        voice.data(api.sweep_csv(found))
    else:
        wrote = f" wrote {output}: sweep.json, sweep.csv, sweep.svg\n" if output is not None else ""
        voice.data(api.render_sweep(found, voice.width, has_color(sys.stdout), is_ascii(sys.stdout)) + wrote)


def none_fits(found: Sweep) -> int:
    """The exit code where no point fits: the highest of the points' own."""
    return max((CODES[code].exit_code for point in found.points for code in point.codes), default=0)


def make_folder(folder: Path) -> None:
    """Raises FlowError FR0026 before anything is planned."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = (error.strerror or str(error)).lower()
        raise FlowError(diagnose("FR0026", file=folder, problem=problem)) from None
