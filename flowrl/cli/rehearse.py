"""The command `rehearse`: what is not as in the plan, then what has run of it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flowrl.cli.group import FlowCommand, voice_of
from flowrl.cli.options import (
    cluster_option,
    launcher_option,
    output_options,
    profile_option,
    runs_option,
    sets_option,
)
from flowrl.cli.voice import as_json

if TYPE_CHECKING:
    from flowrl.runtime.rehearsal import Ran, Rehearsal
    from flowrl.runtime.rehearse import Change

ENGINES = ("hf", "vllm")
KINDS = {"replaced": "not what the plan says", "shrunk": "smaller than the plan says"}


@click.command(cls=FlowCommand, short_help="Run the plan of FILE on this machine, made small.")
@click.argument("file", metavar="FILE|PLAN", type=click.Path(path_type=Path))
@click.option("--steps", type=click.IntRange(1, 100), default=2, show_default=True, help="Steps of each stage.")
@click.option("--ranks", type=click.IntRange(1, 64), default=2, show_default=True, help="Most ranks of a role.")
@click.option("--engine", type=click.Choice(ENGINES), default=ENGINES[0], show_default=True, help="What generates.")
@cluster_option
@launcher_option
@profile_option
@runs_option
@sets_option
@output_options
@click.pass_context
def rehearse(
    context: click.Context,
    file: Path,
    steps: int,
    ranks: int,
    engine: str,
    cluster: str | None,
    launcher: str | None,
    profile: Path | None,
    runs: Path,
    sets: tuple[str, ...],
    **_: object,
) -> None:
    """Run the plan of FILE, or a plan.json, on this machine: small models, few rows, the same program.

    Data and reward functions are the real ones. Says what was made smaller, what was replaced, and which instructions
    have run.
    """
    from flowrl import api

    if launcher == "inline" and engine == "vllm":
        raise click.UsageError("--engine vllm needs processes of its own: --launcher ray", context)
    voice = voice_of(context)

    def tell(changes: Sequence[Change]) -> None:
        if not voice.json:
            voice.data("\n".join(change_lines(changes, voice.width)))

    made = api.rehearse(
        file, sets, cluster, launcher, runs, profile, steps=steps, ranks=ranks, engine=engine, on_changes=tell
    )
    voice.data(as_json(record(made)) if voice.json else "\n".join(ran_lines(made, voice.width)))


def change_lines(changes: Sequence[Change], width: int) -> Iterator[str]:
    for kind, title in KINDS.items():
        mine = [change for change in changes if change.kind == kind]
        if not mine:
            continue
        yield f"{title}"
        for change in mine:
            text = f"{change.of}: {change.was} → {change.now}"
            yield from textwrap.wrap(text, width, initial_indent="  ", subsequent_indent="      ")
    yield ""


def ran_lines(made: Rehearsal, width: int) -> Iterator[str]:
    """What ran, pool by pool, and the sum of it."""
    stages = list(dict.fromkeys(ran.stage for ran in made.ran))
    for stage, pool in dict.fromkeys((ran.stage, ran.pool) for ran in made.ran):
        yield f"{f'{stage}, ' if len(stages) > 1 else ''}pool {pool}"
        mine = [ran for ran in made.ran if (ran.stage, ran.pool) == (stage, pool)]
        wide = min(max(len(ran.instruction) for ran in mine), width - 30)
        for ran in mine:
            yield f"  {ran.instruction:<{wide}}  {_when(ran)}"
    worked = sum(bool(ran.steps) for ran in made.ran)
    yield ""
    yield from textwrap.wrap(
        f"rehearsed: {worked} of {len(made.ran)} instructions have run ({made.launcher}) · {made.folder}", width
    )


def _when(ran: Ran) -> str:
    if not ran.steps:
        return "not in these steps"
    steps = f"step {ran.steps[0]}" if len(ran.steps) == 1 else f"steps {', '.join(map(str, ran.steps))}"
    return f"{steps} · {ran.seconds:.3f} s"


def record(made: Rehearsal) -> dict[str, Any]:
    return {
        "run": str(made.folder),
        "launcher": made.launcher,
        "changes": [{"kind": c.kind, "of": c.of, "was": c.was, "now": c.now} for c in made.changes],
        "instructions": [
            {
                "stage": ran.stage,
                "instruction": ran.instruction,
                "pool": ran.pool,
                "steps": list(ran.steps),
                "seconds": ran.seconds,
            }
            for ran in made.ran
        ],
    }
