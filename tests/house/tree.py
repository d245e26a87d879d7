"""What the tests of the house know of the repository: its root, its files, its rooms."""

from __future__ import annotations

import subprocess
from pathlib import Path

import flowrl

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(flowrl.__file__).resolve().parent

RUNS = ("runtime", "backends", "algos")
"""The rooms that may import torch and its kin."""


def tracked_files() -> list[Path]:
    """Every file that git tracks or would track. Without git: every file outside hidden folders."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listing.returncode:
        return [
            p for p in ROOT.rglob("*") if p.is_file() and not any(part[0] == "." for part in p.relative_to(ROOT).parts)
        ]
    return [ROOT / line for line in listing.stdout.splitlines() if (ROOT / line).is_file()]


def rooms() -> list[str]:
    """Names of the rooms of the package, sorted."""
    return sorted(folder.name for folder in PACKAGE.iterdir() if (folder / "__init__.py").is_file())


def plan_side_modules() -> list[str]:
    """Names of every module that must import without torch and its kin; `api` reaches what runs only when asked."""
    files = sorted(p for p in PACKAGE.rglob("*.py") if p.relative_to(PACKAGE).parts[0] not in RUNS)
    names = [".".join(("flowrl", *p.relative_to(PACKAGE).with_suffix("").parts)) for p in files]
    return [name.removesuffix(".__init__") for name in names]
