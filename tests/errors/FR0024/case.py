"""Two files of which each is small enough for a flow, and both are not."""

from pathlib import Path

from flowrl.spec import load


def diagnostics():
    for name in ("a.yaml", "b.yaml"):
        Path(name).write_text(f"vars: {{{name[0]}: {'x' * 600_000}}}\n")
    load("flow.yaml")
