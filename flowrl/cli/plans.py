"""The commands that ask about plans: `diff` compares two, `why-not` plans with one wish more."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import to_builtins

from flowrl.cli.group import FlowCommand, voice_of
from flowrl.cli.options import cluster_option, exit_code_option, output_options, profile_option, sets_option
from flowrl.cli.voice import Voice, as_json, has_color, is_ascii

if TYPE_CHECKING:
    from flowrl.api import PlanDiff

DIFFERS = 3


@click.command(cls=FlowCommand, short_help="Say what one plan changes of another, and what it saves.")
@click.argument("before", metavar="PLAN|FILE", type=click.Path(path_type=Path))
@click.argument("after", metavar="PLAN|FILE", type=click.Path(path_type=Path))
@exit_code_option
@cluster_option
@profile_option
@sets_option
@output_options
@click.pass_context
def diff(
    context: click.Context,
    before: Path,
    after: Path,
    exit_code: bool,
    cluster: str | None,
    profile: Path | None,
    sets: tuple[str, ...],
    **_: object,
) -> None:
    """Say what the second plan changes of the first, with which effect on a run, and what it costs or saves.

    Each is a plan.json, or a flow, which is planned first with the flags that are given.
    """
    from flowrl import api

    found = api.diff_files(before, after, sets, cluster, profile)
    tell_diff(voice_of(context), found)
    context.exit(DIFFERS if exit_code and found.differs else 0)


@click.command("why-not", cls=FlowCommand, short_help="Say why a plan is not as QUESTION has it.")
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("question")
@cluster_option
@profile_option
@sets_option
@output_options
@click.pass_context
def why_not(
    context: click.Context,
    file: Path,
    question: str,
    cluster: str | None,
    profile: Path | None,
    sets: tuple[str, ...],
    **_: object,
) -> None:
    """Say why the plan of FILE is not as QUESTION has it: what binds, or what it costs.

    QUESTION is one or more wishes with commas between them: `critic on rollout`, `critic with reference`, `critic and
    reference apart`, `actor_infer tp4`, `critic stays`, `critic leaves`, `recompute none of critic`, `rollout 8 gpus`,
    `colocated`, `disaggregated`. Pools are those of the plan.
    """
    from flowrl import api

    voice = voice_of(context)
    answer = api.why_not(file, question, sets, cluster, profile)
    if voice.json:
        voice.data(as_json(to_builtins(answer)))
    else:
        voice.data(api.render_why_not(answer, voice.width, has_color(sys.stdout), is_ascii(sys.stdout)))


def tell_diff(voice: Voice, found: PlanDiff) -> None:
    from flowrl import api

    if voice.json:
        voice.data(api.diff_json(found))
    else:
        voice.data(api.render_diff(found, voice.width, has_color(sys.stdout), is_ascii(sys.stdout)))
