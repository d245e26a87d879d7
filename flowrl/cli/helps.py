"""`plan --helps`: what would make a step shorter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from msgspec import to_builtins

from flowrl.cli.voice import Voice, as_json

if TYPE_CHECKING:
    from flowrl.api import Helps

Command = TypeVar("Command", bound=Callable[..., Any])


def helps_option(command: Command) -> Command:
    text = "Also plan with more devices, lag and other settings, and say what saves time."
    return click.option("--helps", "helps", is_flag=True, help=text)(command)


def tell_helps(voice: Voice, found: Sequence[Helps]) -> None:
    """As text after the plan; as JSON in its place."""
    from flowrl import api

    voice.data(as_json([to_builtins(each) for each in found]) if voice.json else api.render_helps(found, voice.width))


def refuse_beside(context: click.Context, against: Path | None, kept: Path | None) -> None:
    """--helps is about one plan."""
    if against is not None or kept is not None:
        raise click.UsageError("--helps goes with neither --against nor --from", context)
