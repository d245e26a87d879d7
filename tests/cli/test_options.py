"""The options of the command line are a promise: a new one is added to options.txt knowingly."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from flowrl.cli.main import flowrl
from tests.conftest import Golden


def lines() -> Iterator[str]:
    for name, command in flowrl.commands.items():
        yield f"{name}: {' '.join(map(spelling, command.params))}"


def spelling(parameter: click.Parameter) -> str:
    if isinstance(parameter, click.Argument):
        return parameter.make_metavar(click.Context(flowrl))
    choices = f"={'|'.join(parameter.type.choices)}" if isinstance(parameter.type, click.Choice) else ""
    return "/".join(parameter.opts) + choices


def test_options_are_as_in_the_golden(golden: Golden) -> None:
    golden(Path(__file__).with_name("options.txt"), "".join(f"{line}\n" for line in lines()))


def test_every_command_and_option_is_in_the_reference() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    for name, command in flowrl.commands.items():
        row = next(line for line in page.splitlines() if line.startswith(f"| `{name}"))
        options = {opt for p in command.params if isinstance(p, click.Option) for opt in p.opts}
        shared = {"--format", "--width", "--output"}
        assert not {opt for opt in options - shared if opt not in row}, name
