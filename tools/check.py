"""Every check of the house in one run: format, lint, types, layers, line budget, then the whole test suite.

All checks run even if one fails, and the suite runs last, so that the last line printed is pytest's closing line.
Exits 0 only if all of them pass.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = Path(sysconfig.get_path("scripts"))

READING: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("format", (str(SCRIPTS / "ruff"), "format", "--check", "--quiet")),
    ("lint", (str(SCRIPTS / "ruff"), "check", "--quiet")),
    ("types", (str(SCRIPTS / "pyright"), "--warnings")),
    ("layers", (str(SCRIPTS / "lint-imports"),)),
    ("budget", (sys.executable, "tools/budget.py")),
)
SUITE: tuple[str, ...] = (sys.executable, "-m", "pytest")


def say(text: str) -> None:
    """Print at once, so that our lines stand in order with those of the checks."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def passes(name: str, command: tuple[str, ...]) -> bool:
    """Run one check; say its name before and how it went after."""
    say(f"\n== {name}: {' '.join(Path(part).name if part.startswith(os.sep) else part for part in command)}")
    start = time.monotonic()
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    say(f"== {name}: {'ok' if code == 0 else f'failed (exit {code})'}, {time.monotonic() - start:.1f} s")
    return code == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--no-tests", action="store_true", help="only the checks that read the code")
    arguments = parser.parse_args()
    failed = [name for name, command in READING if not passes(name, command)]
    say(f"\n== failed: {', '.join(failed)}" if failed else "\n== every check that reads the code passes")
    if arguments.no_tests:
        return 1 if failed else 0
    say(f"\n== tests: {' '.join(SUITE[1:])}")
    suite = subprocess.run(SUITE, cwd=ROOT, check=False).returncode
    return suite or (1 if failed else 0)


if __name__ == "__main__":
    sys.exit(main())
