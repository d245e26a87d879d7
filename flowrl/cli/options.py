"""Options that several commands share, as decorators."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

DRAWN = ("html", "markdown", "mermaid", "dot", "svg")
"""Forms of a plan for other places than a terminal."""
Command = TypeVar("Command", bound=Callable[..., Any])


def output_options(command: Command) -> Command:
    """`--format` and `--width`: how the command talks (voice.py reads them)."""
    return _output(command, "text", "json")


def report_options(command: Command) -> Command:
    """The same for commands whose diagnostics may be the data: also SARIF."""
    return _output(command, "text", "json", "sarif")


def drawn_options(command: Command) -> Command:
    """The same for plans, which are also drawn for other places."""
    return _output(command, "text", "json", "sarif", *DRAWN)


def page_options(command: Command) -> Command:
    """`--format` and `--width` of what also has a page for a browser."""
    return _output(command, "text", "json", "html")


def _output(command: Command, *formats: str) -> Command:
    width = click.option("--width", type=click.IntRange(60, 300), metavar="COLUMNS", help="Width of text output.")
    choice = click.Choice(formats)
    return click.option("--format", type=choice, default="text", show_default=True, help="Form of the output.")(
        width(command)
    )


def sets_option(command: Command) -> Command:
    return click.option(
        "--set", "sets", multiple=True, metavar="KEY=VALUE", help="Override a key of the flow; may be given many times."
    )(command)


def cluster_option(command: Command) -> Command:
    return click.option(
        "--cluster", metavar="FILE|SHORTHAND", help="Plan for these devices, such as 16xH100-80G, not the flow's."
    )(command)


def profile_option(command: Command) -> Command:
    return click.option(
        "--profile",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="What devices and backends achieve, measured or fitted. Default: the profile that FlowRL brings.",
    )(command)


def exit_code_option(command: Command) -> Command:
    return click.option("--exit-code", is_flag=True, help="Exit with 3 where the plans differ.")(command)


def launcher_option(command: Command) -> Command:
    return click.option(
        "--launcher",
        type=click.Choice(["inline", "ray"]),
        help="inline: in this process. ray: one actor per rank. Default: inline where the plan fits one CPU.",
    )(command)


def plan_option(command: Command) -> Command:
    return click.option(
        "--plan",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="PLAN",
        help="Go on with this plan of the same flow, for other devices. Default: the run's own.",
    )(command)


def replacements_option(command: Command) -> Command:
    return click.option(
        "--replacements",
        type=click.IntRange(min=0),
        metavar="N",
        help="Times that lost ranks of one role are replaced with no new whole step in between. Default: 3.",
    )(command)


def runs_option(command: Command) -> Command:
    return click.option(
        "--runs",
        type=click.Path(file_okay=False, path_type=Path),
        default=Path("runs"),
        show_default=True,
        metavar="DIR",
        help="Folder that gets a folder for this run.",
    )(command)


def run_at_step(context: click.Context, parameter: click.Parameter, value: str) -> tuple[Path, int | None]:
    """`RUN` or `RUN@STEP`: a run's folder, and the step of one of its checkpoints."""
    folder, at, step = value.rpartition("@")
    if not at:
        return Path(value), None
    if not step.isdecimal():
        raise click.BadParameter(f"`{step}` after @ is not a step number", context, parameter)
    return Path(folder), int(step)


def as_flags(cluster: str | None, sets: Sequence[str]) -> str:
    """The flags of a plan as a shell reads them."""
    words = [*(["--cluster", cluster] if cluster else []), *(word for each in sets for word in ("--set", each))]
    return shlex.join(words)
