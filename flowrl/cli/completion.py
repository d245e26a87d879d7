"""The command `completion`: the script that lets a shell complete commands, options and values."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from flowrl.cli.group import FlowCommand

_WHERE = {
    "bash": 'put it into ~/.bashrc:  eval "$(flowrl completion bash)"',
    "zsh": 'put it into ~/.zshrc:   eval "$(flowrl completion zsh)"',
    "fish": "flowrl completion fish > ~/.config/fish/completions/flowrl.fish",
}


@click.command(cls=FlowCommand, epilog="\n\n".join(f"\b\n{line}" for line in _WHERE.values()))
@click.argument("shell", type=click.Choice(list(_WHERE)))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script of a shell."""
    found = get_completion_class(shell)
    assert found is not None  # the three that click has
    root = context.find_root().command
    # The program's name is fixed: a script made by `python -m` must complete `flowrl` too.
    click.echo(found(root, {}, "flowrl", "_FLOWRL_COMPLETE").source())
