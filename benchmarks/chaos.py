"""Faults at random points of real runs: every kind of worker is killed or stopped ten times in one run of 30 steps.

    python benchmarks/chaos.py [--json] [--keep FOLDER] [--only NAME,…] [--seed N] [--steps N] [--points N]

Each scenario is one run on Ray with real backends, a tiny model and float32. At `--points` points, drawn from the seed
and printed, a process of one role gets SIGKILL, or every fifth time SIGSTOP. The run must complete by itself; then

- ledger: each step trained on the prompts and as many samples as the plan says, each prompt once and in order;
- lag: no sample is older than `max_lag` versions;
- equal: metrics, samples, ledger and the last checkpoint's tensors are those of the undisturbed run, bit for bit.

Results are kept in FOLDER/chaos.jsonl (default runs/chaos): a benchmark that is broken off goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.chaotic.outcome import Outcome, compared, undisturbed
from benchmarks.chaotic.scenarios import SCENARIOS, Scenario
from benchmarks.chaotic.strikes import drawn, run_struck


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--keep", type=Path, default=Path("runs/chaos"), metavar="FOLDER")
    parser.add_argument("--only", default="", metavar="NAME,…", help="scenarios to run; default all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--points", type=int, default=10)
    given = parser.parse_args()
    chosen = [name for name in given.only.split(",") if name] or list(SCENARIOS)
    results = [_result(SCENARIOS[name], given) for name in chosen]
    if given.json:
        _say(json.dumps({"seed": given.seed, "scenarios": results, "passed": all(r["passed"] for r in results)}))
    return 0 if all(result["passed"] for result in results) else 1


def _result(scenario: Scenario, given: argparse.Namespace) -> Outcome:
    """The scenario's result, from the file or from a run."""
    given.keep.mkdir(parents=True, exist_ok=True)
    key = {"name": scenario.name, "seed": given.seed, "steps": given.steps, "points": given.points}
    file = given.keep / "chaos.jsonl"
    known = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    found = next((each for each in known if all(each[name] == value for name, value in key.items())), None)
    if found is None:
        found = {**key, **_run(scenario, given)}
        with file.open("a") as out:
            out.write(json.dumps(found) + "\n")
    if not given.json:
        _tell(found)
    return found


def _run(scenario: Scenario, given: argparse.Namespace) -> Outcome:
    steps = given.steps
    strikes = drawn(scenario, given.seed, steps, given.points)
    if not given.json:
        told = ", ".join(f"{s.signal.name} {s.step}/{s.nth}+{s.delay:.2f}s" for s in strikes)
        _say(f"{scenario.name}: seed {given.seed}, {scenario.role} at step/work+delay: {told}")
    whole = undisturbed(scenario, given.keep, steps)
    folder = given.keep / f"{scenario.name}-seed{given.seed}-{steps}"
    shutil.rmtree(folder, ignore_errors=True)
    ended = run_struck(scenario, folder, steps, strikes)
    return {**ended, **compared(scenario, whole, folder, steps)}


def _tell(result: Outcome) -> None:
    passed = "passed" if result["passed"] else "FAILED"
    _say(
        f"{result['name']:<24} {passed}  {result['struck']} struck, {result['replaced']} replaced,"
        f" {result['rolled_back']} rolled back, {result['seconds']:.0f} s, median {result['recovery_seconds']:.1f} s"
        f" to recover · ledger {result['ledger']} · lag {result['lag']} of {result['max_lag']} · equal"
        f" {result['equal']}{'' if not result['error'] else ' · ' + result['error']}",
    )


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
