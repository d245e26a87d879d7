"""A thousand spoilt flows are checked without a traceback, a hang or a rejection without code and place.

The seed rotates by day; it stands in the header of the run, and `python benchmarks/fuzz.py --mutants 1000 --seed SEED`
is the same run again. Takes up to a minute.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from benchmarks.fuzzing import judge as judging
from benchmarks.fuzzing.draft import Mutant
from benchmarks.fuzzing.judge import judge
from benchmarks.fuzzing.mutants import mutant
from benchmarks.fuzzing.seeds import all_seeds
from benchmarks.fuzzing.shrink import shrink
from flowrl import api
from flowrl.diag.diagnostic import diagnose
from tests.house.day import fuzz_seed
from tests.house.tree import ROOT

MUTANTS = 1000
PATIENCE_SECONDS = 900
"""A hang of the fuzzer itself; slow machines take their time."""


@pytest.mark.slow
def test_a_thousand_mutants() -> None:
    command = [sys.executable, "benchmarks/fuzz.py", "--mutants", str(MUTANTS), "--seed", str(fuzz_seed())]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS, errors="replace"
    )
    assert done.returncode == 0, f"seed {fuzz_seed()}\n{done.stdout}\n{done.stderr}"
    counted = [line.split() for line in done.stdout.splitlines() if line.startswith("all ")]
    rejected, accepted = (int(number.replace(",", "")) for number in counted[0][1:3])
    assert rejected + accepted == MUTANTS
    assert min(rejected, accepted) > MUTANTS // 50, "mutants of both kinds, else nothing is tried"


def test_a_mutant_is_made_of_its_seed_and_number_alone() -> None:
    seeds = all_seeds()
    assert [mutant(n, 7, seeds) for n in range(20)] == [mutant(n, 7, seeds) for n in reversed(range(20))][::-1]
    assert mutant(1, 7, seeds) != mutant(1, 8, seeds)


def broken(*_: object) -> NoReturn:
    raise KeyError("policy")


@pytest.mark.parametrize(
    ("check", "signature"),
    [
        (broken, "traceback: KeyError in broken"),
        (lambda *_: api.Checked((), (diagnose("FR0309"),)), "no place: FR0309"),
        (lambda *_: api.Checked((), ()), "no code: api.check"),
    ],
)
def test_the_judge_finds_what_is_against_the_bars(
    check: object, signature: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "check", check)
    monkeypatch.setattr(judging, "MEGABYTES", 1 << 20)  # this process holds what other tests have imported
    verdict = judge(Mutant("seed", ".", (), b"flowrl: 1\n"), tmp_path, plans=False)
    assert [failure.signature for failure in verdict.failures] == [signature]


def test_the_judge_finds_too_much_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "MEGABYTES", 1)
    verdict = judge(Mutant("seed", ".", (), b"flowrl: 1\n"), tmp_path, plans=False)
    assert [failure.signature for failure in verdict.failures] == ["memory: check"]


def test_the_judge_weighs_the_work_and_not_the_mutant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def peak(megabytes: int) -> float:
        return judge(Mutant("seed", ".", (), b" " * (megabytes << 20)), tmp_path, plans=False).megabytes

    assert peak(64) - peak(0) < 16
    small = peak(0)
    monkeypatch.setattr(api, "check", lambda path, *_: api.Checked((), (diagnose("FR0309"),) * bool(path.read_bytes())))
    assert peak(64) - small > 48, "what reads it all is found"


def test_shrinking_keeps_the_lines_that_fail() -> None:
    lines = [f"line {n}".encode() for n in range(40)]
    wanted = {b"line 7", b"line 31"}
    whole = Mutant("seed", ".", (), b"\n".join(lines), sets=("a=1", "b=2"), files=(("x.yaml", b""),))
    small = shrink(whole, lambda each: wanted <= set(each.data.split(b"\n")) and "b=2" in each.sets, tries=500)
    assert set(small.data.split(b"\n")) == wanted
    assert (small.sets, small.files) == (("b=2",), ())
