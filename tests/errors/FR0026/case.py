"""A folder that is a file."""

from pathlib import Path

from flowrl import api


def diagnostics():
    Path("job").write_text("")
    api.init("sft", "job/flow.yaml")
