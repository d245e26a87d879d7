"""Runs every preset and every flow of examples/flows/, made small as `flowrl rehearse` makes them, and shows that they
train: loss and reward of each step, or why a flow cannot run here.

    python benchmarks/flows.py                       # all, three steps each; exits 1 if one that can run does not
    python benchmarks/flows.py --only grpo --only 10 # cases with these words in their names
    python benchmarks/flows.py --results FILE        # keep rows in FILE as they are made, and go on where it ends
    python benchmarks/flows.py --learn               # GRPO, PPO, RLOO, DAPO and StarPO-S on a real task, held-out rise
    python benchmarks/flows.py --json

Data files and rewards that are not in the repository are stood in for (benchmarks/flowing/stand_ins.py). One process,
one core, inline launcher; progress goes to stderr.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks.flowing import learn, table  # noqa: E402
from benchmarks.flowing.cases import cases  # noqa: E402
from benchmarks.flowing.one import apart  # noqa: E402

Rows = dict[str, dict[str, Any]]


def main() -> int:
    parser = argparse.ArgumentParser(description="Run every preset and example flow, small.")
    parser.add_argument("--steps", type=int, default=3, help="steps of each stage (default 3)")
    parser.add_argument("--only", action="append", default=[], help="cases with this word in their names")
    parser.add_argument("--results", type=Path, help="file that keeps rows; what it has is not run again")
    parser.add_argument("--learn", action="store_true", help="whether algorithms raise a held-out reward")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    given = parser.parse_args()
    kept: Rows = json.loads(given.results.read_text()) if given.results and given.results.exists() else {}
    made = learned(given.only, kept, given.results) if given.learn else ran(given, kept)
    rows = list(made)
    good = all(learn.holds(row) if given.learn else _fine(row, given.steps) for row in rows)
    if given.json:
        sys.stdout.write(json.dumps(rows, indent=1) + "\n")
    else:
        text = learn.lines(rows) if given.learn else table.lines(rows)
        sys.stdout.write("\n".join(text) + "\n")
    return 0 if good else 1


def _fine(row: Mapping[str, Any], steps: int) -> bool:
    """What is refused says so in the table; it is no failure of a flow that runs."""
    return "refused" in row or table.ran(row, steps)


def ran(given: argparse.Namespace, kept: Rows) -> Iterator[dict[str, Any]]:
    chosen = [case for case in cases() if not given.only or any(word in case.key for word in given.only)]
    for number, case in enumerate(chosen, start=1):
        if case.key not in kept:
            sys.stderr.write(f"{number} of {len(chosen)}: {case.key}\n")
            kept[case.key] = {"case": case.key, **apart(case, given.steps)}
            sys.stderr.write(f"    {table.outcome(kept[case.key])}\n")
            _keep(kept, given.results)
        yield kept[case.key]


def learned(only: Sequence[str], kept: Rows, results: Path | None) -> Iterator[dict[str, Any]]:
    """The warm model lies beside the results, so that a benchmark that goes on does not teach it again."""
    names = [name for name in learn.ALGORITHMS if not only or any(word in name for word in only)]
    with tempfile.TemporaryDirectory(prefix="flowrl-learn-") as made:
        folder = Path(made) if results is None else results.with_name(f"{results.stem}-learn").resolve()
        folder.mkdir(exist_ok=True)
        for name in names:
            learn.run_all([name], kept, folder)
            _keep(kept, results)
            yield kept[f"learn {name}"]


def _keep(rows: Rows, file: Path | None) -> None:
    if file is not None:
        file.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
