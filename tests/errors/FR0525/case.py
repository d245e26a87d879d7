"""A profile of one field."""

from pathlib import Path

from flowrl.api.profile import load_profile


def diagnostics():
    Path("mine.toml").write_text('origin = "mine"\n')
    load_profile("mine.toml")
