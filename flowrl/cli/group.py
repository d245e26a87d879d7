"""The click classes of the command line: exit codes, frames instead of tracebacks, and near names for usage errors.

A command raises FlowError for a fault of the user; whatever else it raises is a fault of ours. Both become frames here.
"""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Mapping
from typing import Any, cast

import click

from flowrl.cli.voice import INTERRUPTED, USAGE, Voice, natural_width, worst
from flowrl.diag.diagnostic import FlowError, diagnose

EXTRAS: Mapping[str, str] = {
    "numpy": "fsdp",
    "torch": "fsdp",
    "transformers": "fsdp",
    "safetensors": "fsdp",
    "tensorboard": "fsdp",
    "ray": "ray",
    "vllm": "vllm",
}
"""Packages that the plan side does without, and the extra that brings each."""


def flag_texts(parameters: Mapping[str, Any]) -> dict[str, str]:
    """What the user wrote in the flags that spans can name: one `--set` a line."""
    sets = cast("tuple[str, ...]", parameters.get("sets") or ())
    from flowrl.spec.flags import flags_text

    texts = {"--set": flags_text(sets)} if sets else {}
    for flag, name in (("--gpus", "gpus"), ("--gpu", "gpu"), ("--price", "prices")):
        given = cast("tuple[str, ...]", parameters.get(name) or ())
        texts |= {flag: flags_text(given)} if given else {}
    question = parameters.get("question")
    if question:
        from flowrl.explain.question import SOURCE

        texts[SOURCE] = str(question).replace("\n", " ")
    cluster = parameters.get("cluster")
    return texts | ({"--cluster": str(cluster)} if cluster else {})


def voice_of(context: click.Context) -> Voice:
    """The voice of the running command, from its own options."""
    parameters = context.params
    return Voice(
        format=str(parameters.get("format") or "text"),
        width=int(parameters.get("width") or natural_width(sys.stdout)),
        texts=flag_texts(parameters),
    )


class FlowCommand(click.Command):
    """A command whose exceptions are told in frames and end in an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        voice = voice_of(ctx)
        try:
            return super().invoke(ctx)
        except FlowError as error:
            voice.diagnostics(error.diagnostics)
            # A run that a signal ended has the shell's status for it (130 for Ctrl-C).
            status = getattr(error, "exit_status", None) or worst(error.diagnostics)
            raise click.exceptions.Exit(status) from None
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except BrokenPipeError:
            # The reader of our output went away (`flowrl plan … | head`): nothing is left to say, not even at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise click.exceptions.Exit(0) from None
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package not in EXTRAS:
                raise click.exceptions.Exit(voice.internal(error)) from error
            what = f"`flowrl {ctx.info_name}`"
            missing = diagnose("FR0913", what=what, package=package, extra=EXTRAS[package])
            voice.diagnostics([missing])
            raise click.exceptions.Exit(missing.exit_code) from None
        except Exception as error:
            raise click.exceptions.Exit(voice.internal(error)) from error


TASKS: Mapping[str, tuple[str, ...]] = {
    "Write a flow": ("init", "check", "expand", "show", "schema"),
    "Plan it": ("plan", "explain", "why-not", "sweep", "diff"),
    "Run it": ("rehearse", "run", "resume", "export"),
    "Look at a run": ("report", "trace", "calibrate"),
    "This machine": ("profile", "completion"),
}
"""The commands by what they are for, in the order of a flow's life."""


class FlowGroup(click.Group):
    """The group of all commands. An unknown one is told with its near names."""

    command_class = FlowCommand

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of TASKS."""
        return [name for names in TASKS.values() for name in names]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """A list for each task."""
        widest = max(map(len, self.commands))
        for task, names in TASKS.items():
            room = formatter.width - 6 - widest
            rows = [(f"{name:<{widest}}", self.commands[name].get_short_help_str(room)) for name in names]
            with formatter.section(task):
                formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            raise UnknownName("command", args[0], list(self.commands), ctx)
        return super().resolve_command(ctx, args)


class UnknownName(click.UsageError):
    """A name that is none of the known ones: `what` says of what kind. `near`: names to propose, if not those that look
    like it."""

    def __init__(
        self, what: str, name: str, known: list[str], context: click.Context, near: list[str] | None = None
    ) -> None:
        super().__init__(f"no {what} `{name}`", context)
        self.what = what
        self.name = name
        self.known = known
        self.near = near


class NothingChosen(click.UsageError):
    """An option that has to be given: the help lists what it takes, `choices` by name with a line each."""

    def __init__(self, option: str, plural: str, choices: Mapping[str, str], context: click.Context) -> None:
        super().__init__(f"missing option `{option}`", context)
        self.plural = plural
        self.choices = choices


def code_of(text: str) -> str | None:
    """`206`, `fr0206` → FR0206; None for what is no number and does not start like a code."""
    found = re.fullmatch(r"(?:fr)?(\d{1,4})", text, re.IGNORECASE)
    return f"FR{int(found.group(1)):04}" if found else None


ALL_NAMES = 32
"""As many names are listed when none of them is near."""


def usage_help(error: click.UsageError) -> str | None:
    """The fact that helps: a near name, or all of them if they are few."""
    from flowrl.diag.near import near_names

    given = None
    if isinstance(error, NothingChosen):
        wide = max(map(len, error.choices))
        room = natural_width(sys.stderr) - wide - 7
        short = {name: textwrap.shorten(what, room, placeholder=" …") for name, what in error.choices.items()}
        lines = [f"     {name:<{wide}}  {what}" for name, what in short.items()]
        return "\n".join([f"the {error.plural} are", *lines])
    if isinstance(error, UnknownName):
        what, name, known, given = error.what, error.name, error.known, error.near
    elif isinstance(error, click.NoSuchOption) and error.ctx is not None:
        what, name = "option", error.option_name
        known = [spelling for parameter in error.ctx.command.get_params(error.ctx) for spelling in parameter.opts]
    else:
        return None
    near = near_names(name, known) if given is None else given
    if near:
        article = "an" if what[0] in "aeiou" else "a"
        return f"{article} {what} with a near name exists: {', '.join(near)}"
    plural = f"{what}es" if what.endswith("s") else f"{what}s"
    return f"the {plural} are {', '.join(known)}" if 0 < len(known) <= ALL_NAMES else None


def usage_text(error: click.UsageError) -> str:
    """A usage error in the manner of the frames: headline, help, where to see more."""
    if isinstance(error, click.NoSuchOption):
        message = f"no option `{error.option_name}`"
    else:
        message = error.format_message().rstrip(".").replace("'", "`")
        message = message[:1].lower() + message[1:]
    lines = [f"error: {message}"]
    help_line = usage_help(error)
    if help_line:
        lines.append(f"   = help: {help_line}")
    path = error.ctx.command_path if error.ctx else "flowrl"
    lines.append(f"   = see:  {path} --help")
    return "\n".join(lines)


def run_group(group: click.Group, arguments: list[str]) -> int:
    """Run one command line and return its exit code; raises nothing."""
    try:
        code = group.main(args=arguments, prog_name="flowrl", standalone_mode=False)
    except click.UsageError as error:
        click.echo(usage_text(error), err=True)
        return USAGE
    except click.ClickException as error:
        click.echo(f"error: {error.format_message()}", err=True)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return INTERRUPTED
    except Exception as error:
        return Voice().internal(error)
    return code if isinstance(code, int) else 0
