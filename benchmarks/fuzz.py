"""A mutation fuzzer of `flowrl check` over every preset and example.

    python benchmarks/fuzz.py --mutants 20000 --seed 7 --jobs 2
    python benchmarks/fuzz.py --seed 7 --only 1234          # one mutant of that seed: its text and verdict

Each mutant is checked in a worker process: a key, value or edge deleted, renamed, retyped, doubled or swapped; lines,
characters and bytes spoilt; deep nesting, alias bombs, 10 MB; templates, flags, includes. A share of those that are
accepted is planned, written and read back. Bars: no traceback, at most 2 s of processor time, at most 500 MB, and a
code and a place for every rejection. Exits 1 if a mutant is over a bar; each kind of failure is shown once, made
small.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks.fuzzing.draft import Mutant  # noqa: E402
from benchmarks.fuzzing.judge import MEGABYTES, SECONDS, Failure, Verdict  # noqa: E402
from benchmarks.fuzzing.mutants import mutant  # noqa: E402
from benchmarks.fuzzing.pool import Pool, Task  # noqa: E402
from benchmarks.fuzzing.seeds import Seed, all_seeds  # noqa: E402
from benchmarks.fuzzing.shrink import shrink  # noqa: E402

PLANNED_SHARE = 4
"""Each mutant whose number it divides is planned if it is accepted."""
SHOWN_LINES = 60
SHOWN_COLUMNS = 160
TRIES = 150
SLOW_TRIES = 20
"""To make a failure small."""
SMALL_KINDS = 12
"""Kinds of failure that are made small; the others are only counted."""


@dataclass(slots=True)
class Tally:
    """What has come out so far."""

    accepted: Counter[str] = field(default_factory=Counter[str])
    rejected: Counter[str] = field(default_factory=Counter[str])
    codes: Counter[str] = field(default_factory=Counter[str])
    planned: int = 0
    slowest: tuple[float, int] = (0.0, -1)
    largest: tuple[float, int] = (0.0, -1)
    failures: dict[str, list[tuple[int, Failure]]] = field(default_factory=dict[str, list[tuple[int, Failure]]])

    def add(self, number: int, verdict: Verdict) -> None:
        counter = self.accepted if verdict.accepted else self.rejected
        counter.update(("all", *set(verdict.operations)))
        self.codes.update(verdict.codes)
        self.planned += verdict.planned
        self.slowest = max(self.slowest, (verdict.seconds, number))
        self.largest = max(self.largest, (verdict.megabytes, number))
        for failure in verdict.failures:
            self.failures.setdefault(failure.signature, []).append((number, failure))


def say(text: str = "") -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def fuzz(pool: Pool, count: int) -> Tally:
    tally = Tally()
    start = time.monotonic()
    tasks: list[Task] = [(number, number % PLANNED_SHARE == 0) for number in range(count)]
    for done, (number, verdict) in enumerate(pool.judge_all(tasks), start=1):
        tally.add(number, verdict)
        if done % 2000 == 0:
            failed = sum(len(found) for found in tally.failures.values())
            say(f"  {done:,} mutants in {time.monotonic() - start:.0f} s, {failed} failures")
    return tally


def sound_seeds(pool: Pool, seeds: tuple[Seed, ...]) -> list[str]:
    """How each seed fares before it is spoilt: the codes of those that are refused, and failures."""
    whole = [Mutant(seed.name, seed.folder, (), seed.text.encode()) for seed in seeds]
    verdicts = dict(pool.judge_all([(each, True) for each in whole]))
    lines: list[str] = []
    for index, seed in enumerate(seeds):
        verdict = verdicts[index]
        if not verdict.accepted or verdict.failures:
            words = [*verdict.codes, *(f"{failure.signature}\n{failure.detail}" for failure in verdict.failures)]
            lines.append(f"  {seed.name}: {', '.join(words)}")
    return lines


def report(tally: Tally, seed: int, wall: float) -> None:
    say(f"\n{'operation':<24}{'rejected':>10}{'accepted':>10}")
    for name in sorted({*tally.accepted, *tally.rejected} - {"all"}):
        say(f"{name:<24}{tally.rejected[name]:>10,}{tally.accepted[name]:>10,}")
    say(f"{'all':<24}{tally.rejected['all']:>10,}{tally.accepted['all']:>10,}   planned {tally.planned:,}")
    often = ", ".join(f"{code} {times}" for code, times in tally.codes.most_common(8))
    say(f"\ndistinct codes {len(tally.codes)}; most often {often}")
    seconds, slow = tally.slowest
    megabytes, large = tally.largest
    say(f"slowest   {seconds:6.2f} s of {SECONDS:.0f} s processor time   (mutant {slow})")
    say(f"largest   {megabytes:6.0f} MB of {MEGABYTES} MB              (mutant {large})")
    failed = len({number for found in tally.failures.values() for number, _ in found})
    say(f"failures  {failed} in {len(tally.failures)} kinds, seed {seed}, {wall:.0f} s of wall clock")


def explain(tally: Tally, pool: Pool, seed: int, seeds: tuple[Seed, ...]) -> None:
    """Each kind of failure once, made small."""
    for kind, (signature, found) in enumerate(sorted(tally.failures.items())):
        number, failure = min(found, key=lambda each: each[0])
        say(f"\n== {signature}   ({len(found)} times)   --seed {seed} --only {number}")
        say(failure.detail)
        if kind >= SMALL_KINDS:
            continue

        def fails(candidate: Mutant, wanted: str = signature) -> bool:
            [(_, verdict)] = pool.judge_all([(candidate, True)])
            return any(each.signature == wanted for each in verdict.failures)

        tries = SLOW_TRIES if failure.kind in ("hang", "died") else TRIES
        show(shrink(mutant(number, seed, seeds), fails, tries))


def show(small: Mutant) -> None:
    say(f"-- from {small.seed} by {', '.join(small.operations)}")
    for flag in small.sets:
        say(f"-- --set {flag[:200]!r}")
    if small.cluster is not None:
        say(f"-- --cluster {small.cluster[:200]!r}")
    for name, data in small.files:
        say(f"-- {name}: {data[:200]!r}")
    lines = small.data.split(b"\n")
    for line in lines[:SHOWN_LINES]:
        say(printable(line[:SHOWN_COLUMNS]) + (f" … {len(line):,} bytes" if len(line) > SHOWN_COLUMNS else ""))
    if len(lines) > SHOWN_LINES:
        say(f"-- and {len(lines) - SHOWN_LINES:,} lines more")


def printable(data: bytes) -> str:
    text = data.decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutants", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", type=int, help="judge one mutant of the seed and show it")
    arguments = parser.parse_args()
    seeds = all_seeds()
    with Pool(arguments.jobs if arguments.only is None else 1, arguments.seed, seeds) as pool:
        if arguments.only is not None:
            show(mutant(arguments.only, arguments.seed, seeds))
            [(_, verdict)] = pool.judge_all([(arguments.only, True)])
            say(f"-- {'accepted' if verdict.accepted else 'rejected'} {', '.join(verdict.codes)}")
            say(f"-- {verdict.seconds:.2f} s, {verdict.megabytes:.0f} MB")
            for failure in verdict.failures:
                say(f"== {failure.signature}\n{failure.detail}")
            return 1 if verdict.failures else 0
        say(
            f"fuzz: {arguments.mutants:,} mutants of {len(seeds)} seeds, --seed {arguments.seed}, {arguments.jobs} jobs"
        )
        refused = sound_seeds(pool, seeds)
        say("\n".join([f"{len(seeds) - len(refused)} seeds are accepted as they are", *refused]))
        start = time.monotonic()
        tally = fuzz(pool, arguments.mutants)
        report(tally, arguments.seed, time.monotonic() - start)
        explain(tally, pool, arguments.seed, seeds)
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
