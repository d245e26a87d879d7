"""The profile that a plan is made with: a file that `--profile` names."""

from __future__ import annotations

from pathlib import Path as FilePath

from msgspec.structs import replace

from flowrl.diag.diagnostic import FlowError, diagnose
from flowrl.machine.profile import Profile, read_profile
from flowrl.spec.files import read_text


def load_profile(path: str | FilePath) -> Profile:
    """The profile in a TOML file. Its figures' origin in a plan is the file. Raises FlowError: FR00 for a file that
    cannot be read, FR0525 for one that holds no profile."""
    text = read_text(path, "a TOML file that `flowrl profile` wrote")
    try:
        profile = read_profile(text)
    except ValueError as error:
        raise FlowError(diagnose("FR0525", file=path, problem=str(error))) from None
    return replace(profile, origin=f"{path}: {profile.origin}")
