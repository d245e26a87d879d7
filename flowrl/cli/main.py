"""The command `flowrl`: parse arguments, call the api, print what it gives. No logic lives here.

What needs time to import is imported when a command runs, so that `flowrl --help` answers at once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click
from msgspec import to_builtins

from flowrl import __version__
from flowrl.cli.after import report, trace
from flowrl.cli.completion import completion
from flowrl.cli.group import FlowGroup, NothingChosen, UnknownName, code_of, run_group, voice_of
from flowrl.cli.moves import from_option
from flowrl.cli.numbers import calibrate, profile
from flowrl.cli.options import (
    cluster_option,
    launcher_option,
    output_options,
    plan_option,
    profile_option,
    replacements_option,
    report_options,
    run_at_step,
    runs_option,
    sets_option,
)
from flowrl.cli.plan import plan
from flowrl.cli.plans import diff, why_not
from flowrl.cli.rehearse import rehearse
from flowrl.cli.results import fixed_line, key_lines, result_line, result_record
from flowrl.cli.sweep import sweep
from flowrl.cli.voice import Voice, as_json, count_line, has_color, is_ascii, worst
from flowrl.diag.catalogue import CODES
from flowrl.diag.pages import page

if TYPE_CHECKING:
    from flowrl.api import Fixed
    from flowrl.runtime.result import RunResult

PLANNED = (".json", ".yaml", ".yml")
"""Endings of what `explain` takes for a plan or a flow."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command line (this process's by default) and exit. 0 ok · 1 fault of the flow · 2 usage · 3 plans differ
    (where asked) · 4 infeasible · 5 the run failed · 70 fault of FlowRL · 130 interrupted."""
    sys.exit(run_group(flowrl, list(sys.argv[1:] if arguments is None else arguments)))


@click.group(cls=FlowGroup, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="flowrl %(version)s")
@click.pass_context
def flowrl(context: click.Context) -> None:
    """Plan and run the dataflow of LLM reinforcement learning.

    A flow is a YAML file. `plan` says what runs where and when, whether it fits, and why; it needs no GPU. `run` does
    it.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@flowrl.command(short_help="Write a commented flow that uses a preset.")
@click.option("--preset", metavar="NAME", help="Preset that the flow starts from; without one, what there is.")
@click.argument("target", metavar="[FILE|FOLDER]", type=click.Path(path_type=Path), default=Path())
@output_options
@click.pass_context
def init(context: click.Context, target: Path, preset: str | None, **_: object) -> None:
    """Write a commented flow that uses a preset, and the functions that it names. Overwrites nothing."""
    from flowrl import api

    if preset is None:
        raise NothingChosen("--preset", "presets", api.presets(), context)
    voice = voice_of(context)
    written = [str(file) for file in api.init(preset, target)]
    voice.data(as_json({"files": written}) if voice.json else f"wrote {', '.join(written)}")


@flowrl.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--fix", "fixes", is_flag=True, help="Make the edits that are certain, and show them.")
@cluster_option
@sets_option
@report_options
@click.pass_context
def check(
    context: click.Context, file: Path, fixes: bool, cluster: str | None, sets: tuple[str, ...], **_: object
) -> None:
    """Report every fault of FILE at once, and run nothing."""
    from flowrl import api

    voice = voice_of(context)
    changed: list[Fixed] = []
    if fixes:
        changed, checked = api.fix(file, sets=sets, cluster=cluster)
    else:
        checked = api.check(file, sets=sets, cluster=cluster)
    for fixed in changed:
        click.echo(fixed.diff(), err=voice.format != "text", nl=False)
    voice.diagnostics(checked.diagnostics, stream=None if voice.format == "text" else sys.stdout)
    if voice.format == "text":
        told = f"{fixed_line(changed, not checked.diagnostics)}; " if fixes else ""
        voice.data(f"{file}: {told}{count_line(checked.diagnostics)}")
    context.exit(worst(checked.diagnostics))


flowrl.add_command(plan)
flowrl.add_command(rehearse)


@flowrl.command()
@click.argument("file", metavar="FILE|PLAN", type=click.Path(path_type=Path))
@cluster_option
@launcher_option
@profile_option
@replacements_option
@runs_option
@sets_option
@output_options
@click.pass_context
def run(
    context: click.Context,
    file: Path,
    cluster: str | None,
    launcher: str | None,
    profile: Path | None,
    replacements: int | None,
    runs: Path,
    sets: tuple[str, ...],
    **_: object,
) -> None:
    """Plan FILE and run it, or run the plan of a plan.json."""
    from flowrl import api

    result = api.run(file, sets, cluster, launcher, runs, profile, replacements)
    tell_result(voice_of(context), result)


@flowrl.command()
@click.argument("run_folder", metavar="RUN", type=click.Path(path_type=Path))
@launcher_option
@plan_option
@replacements_option
@output_options
@click.pass_context
def resume(
    context: click.Context,
    run_folder: Path,
    launcher: str | None,
    plan: Path | None,
    replacements: int | None,
    **_: object,
) -> None:
    """Continue the run in folder RUN from its last checkpoint."""
    from flowrl import api

    tell_result(voice_of(context), api.resume(run_folder, launcher, replacements, plan))


def tell_result(voice: Voice, result: RunResult) -> None:
    voice.data(as_json(result_record(result)) if voice.json else result_line(result))


@flowrl.command(short_help="Write a checkpoint of RUN as a Hugging Face folder.")
@click.argument("checkpoint", metavar="RUN[@STEP]", callback=run_at_step)
@click.option(
    "-o", "--output", type=click.Path(file_okay=False, path_type=Path), required=True, help="Folder to write."
)
@click.option("--role", metavar="ROLE", help="Trainer to export. Default: the only one, or actor_train.")
@output_options
@click.pass_context
def export(
    context: click.Context, checkpoint: tuple[Path, int | None], output: Path, role: str | None, **_: object
) -> None:
    """Write a checkpoint as a Hugging Face folder: RUN's last one, or that of STEP."""
    from flowrl import api

    voice = voice_of(context)
    run_folder, step = checkpoint
    written = api.export(run_folder, output, step=step, role=role)
    voice.data(as_json({"folder": str(written)}) if voice.json else f"wrote {written}")


@flowrl.command(short_help="Print FILE with all that it includes worked in.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--origins", is_flag=True, help="Every value, also defaults, with a comment that says where it came from."
)
@sets_option
@output_options
@click.pass_context
def expand(context: click.Context, file: Path, origins: bool, sets: tuple[str, ...], **_: object) -> None:
    """Print FILE with its preset, included files, variables and `--set` worked in."""
    from flowrl import api

    voice = voice_of(context)
    text = api.expand(file, sets=sets, origins=origins)
    voice.data(as_json({"flow": text}) if voice.json else text)


@flowrl.command(short_help="Draw the dataflow of FILE, or print its graph after a pass.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--after", metavar="PASS", help="Print the graph's canonical text after this pass; `lowered`: before any."
)
@sets_option
@output_options
@click.pass_context
def show(context: click.Context, file: Path, after: str | None, sets: tuple[str, ...], **_: object) -> None:
    """Draw the dataflow of FILE as it is after all passes, or print its graph after one of them."""
    from flowrl import api

    if after is not None and after not in api.STOPS:
        raise UnknownName("pass", after, list(api.STOPS), context)
    voice = voice_of(context)
    spec = api.load(file, sets)
    graphs = api.graphs_after(spec, after or api.STOPS[-1])
    if voice.json:
        voice.data(as_json([to_builtins(graph) for graph in graphs]))
    elif after is not None:
        voice.data(api.canonical(graphs))
    else:
        voice.data(api.draw(graphs, spec.document.name, voice.width, has_color(sys.stdout), is_ascii(sys.stdout)))


@flowrl.command(short_help="Open a number of a plan, or print what a code or key means.")
@click.argument("words", metavar="CODE|KEY|PLAN [KEY]", nargs=-1, required=True)
@from_option
@cluster_option
@profile_option
@sets_option
@output_options
@click.pass_context
def explain(
    context: click.Context,
    words: tuple[str, ...],
    kept: Path | None,
    cluster: str | None,
    profile: Path | None,
    sets: tuple[str, ...],
    **_: object,
) -> None:
    """Open a number or decision of a plan, or print what a code or a key of the language means.

    PLAN is a plan.json, or a flow, which is planned first. Its KEY: D2, step, actor_infer.generate.decode,
    train.actor_train.update.activations, node0/0, "actor_train => actor_infer"; without one, all that can be opened.
    Without PLAN: FR0206 or 206, step.refill, update.loss. With --from, the numbers of what moves: break-even, moving,
    actor_train.moving.
    """
    from flowrl import api

    voice = voice_of(context)
    first, *rest = words
    if len(rest) > 1:
        raise click.UsageError(f"got unexpected extra argument ({rest[1]})", context)
    what = rest[0] if rest else first
    code = code_of(what)
    if code is not None:
        explain_code(context, voice, code, what)
    elif rest or Path(first).suffix in PLANNED:
        file, key = Path(first), rest[0] if rest else None
        if kept is not None:
            opened = api.open_move(key, file, kept, sets, cluster, profile)
        else:
            opened = api.open_number(api.plan_of(file, sets, cluster, profile), key, file)
        voice.data(as_json(to_builtins(opened)) if voice.json else api.render_opened(opened, voice.width))
    else:
        explain_key(context, voice, what)


def explain_code(context: click.Context, voice: Voice, code: str, asked: str) -> None:
    text = page(code)
    if text is None:
        raise UnknownName("code", asked.upper(), sorted(CODES), context)
    voice.data(as_json({"code": code, "page": text}) if voice.json else text)


def explain_key(context: click.Context, voice: Voice, what: str) -> None:
    from flowrl import api

    schema = api.schema()
    keys = api.find_keys(schema, what)
    if not keys:
        raise UnknownName("key", what, [], context, near=api.near_keys(schema, what))
    voice.data(as_json([key.record() for key in keys]) if voice.json else key_lines(keys, voice.width))


flowrl.add_command(diff)
flowrl.add_command(why_not)
flowrl.add_command(sweep)
flowrl.add_command(profile)
flowrl.add_command(calibrate)
flowrl.add_command(report)
flowrl.add_command(trace)
flowrl.add_command(completion)


@flowrl.command()
@output_options
@click.pass_context
def schema(context: click.Context, **_: object) -> None:
    """Print the JSON Schema of flows, for editors."""
    from flowrl import api

    voice_of(context).data(as_json(api.schema()))
