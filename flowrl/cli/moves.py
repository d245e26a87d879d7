"""`--from PLAN`: what `plan` and `explain` say of a flow that moves from the cluster of a kept plan to another."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from flowrl.cli.voice import Voice, has_color, is_ascii

if TYPE_CHECKING:
    from flowrl.api import Replan
    from flowrl.diag.diagnostic import Diagnostic

Command = TypeVar("Command", bound=Callable[..., Any])


def from_option(command: Command) -> Command:
    return click.option(
        "--from",
        "kept",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="PLAN",
        help="Print what moves from this plan.json to the plan of FILE.",
    )(command)


def tell_replan(voice: Voice, found: Replan, planned: Sequence[Diagnostic], flags: str = "") -> None:
    """The move, then its own diagnostics with those of the new plan."""
    from flowrl import api

    if voice.json:
        voice.data(api.replan_json(found))
    else:
        voice.data(api.render_replan(found, voice.width, has_color(sys.stdout), is_ascii(sys.stdout), flags))
    voice.diagnostics([*found.diagnostics, *planned])
