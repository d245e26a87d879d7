"""A flow that is built in Python, given where a flow's YAML is read."""

from pathlib import Path

from flowrl import load


def diagnostics() -> None:
    Path("flow.py").write_text('from flowrl import Flow\n\nflow = Flow("demo")\n')
    load("flow.py")
