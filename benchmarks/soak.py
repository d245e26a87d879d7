"""A long run that must leave nothing behind: memory, processes, files and shared memory of asynchronous GRPO on Ray.

    python benchmarks/soak.py --minutes 30          # exits 1 if something grows or is left
    python benchmarks/soak.py --minutes 3 --lag 0   # a first look, the synchronous flow

Every process of the run is found by a mark in its environment and looked at every few seconds. Memory is the sum of
their proportional set sizes, so that shared pages count once. The first steps and a quarter of the time after them are
not judged; over the rest a line is fitted (least squares). At the end the run is told to stop, as by Ctrl-C, and must
be gone.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks.searching.outcome import Outcome  # noqa: E402

MOST_GROWTH = 0.05
"""Of memory, files and segments over the time that is judged."""
EVERY_SECONDS = 5.0
FIRST_STEPS = 3
WARM_UP = 0.25
"""Share of the time since the first steps that is not judged."""
END_SECONDS = 120.0
MARK = "FLOWRL_SOAK"
SHARED = Path("/dev/shm")
SMALL = ("step.prompts=8", "roles.actor_infer.generate.max_response_tokens=128", "run.samples_logged=4")
FLOW = ROOT / "benchmarks" / "flows" / "running" / "tails.yaml"


@dataclass(frozen=True, slots=True)
class Look:
    seconds: float
    processes: int
    memory_bytes: int
    files: int
    """Open file descriptors of all processes."""
    segments: int
    """Files in /dev/shm that were not there before."""
    steps: int


def main() -> int:
    parser = argparse.ArgumentParser(description="Run asynchronous GRPO for long and look for leaks.")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--lag", type=int, default=1, help="0: the synchronous flow")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    outcome, looks = soak(options.minutes * 60, options.lag)
    if options.json:
        sys.stdout.write(json.dumps({**asdict(outcome), "looks": [asdict(look) for look in looks]}, indent=1) + "\n")
    else:
        sys.stdout.write(outcome.text + "\n")
    return 0 if outcome.holds else 1


def soak(seconds: float, lag: int) -> tuple[Outcome, list[Look]]:
    mark, known = secrets.token_hex(8), set[str]()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        run = _start(Path(folder), mark, lag)
        looks: list[Look] = []
        while time.monotonic() - started < seconds and run.poll() is None:
            time.sleep(EVERY_SECONDS)
            looks.append(_look(time.monotonic() - started, mark, known, Path(folder)))
        ran_on = run.poll() is None
        run.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            run.wait(END_SECONDS)
        left = _wait_until_gone(mark)
        told = (Path(folder) / "log").read_text()[-2000:]
    outcome = _judge(looks, seconds, lag)
    outcome.seconds, outcome.clock = time.monotonic() - started, "s"
    outcome.bar("the run", "ran until it was stopped" if ran_on else f"ended early: {told}", "runs on", ran_on)
    outcome.bar("its end", f"exit status {run.poll()}", "130, as after Ctrl-C", run.poll() == 130)
    outcome.bar("processes left", len(left), "0", not left)
    segments = sorted(known & _segments())
    outcome.bar("segments left in /dev/shm", ", ".join(segments[:5]) or 0, "0", not segments)
    for process in left:  # they are ours, by the mark
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    return outcome, looks


def _start(folder: Path, mark: str, lag: int) -> subprocess.Popen[bytes]:
    sets = [*SMALL, f"vars.lag={lag}", "run.steps=1000000", "run.checkpoint_every_steps=50"]
    front_door = "import sys; from flowrl.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", front_door, "run", str(FLOW), "--launcher", "ray", "--runs", str(folder / "runs")]
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(
            [*command, *(part for each in sets for part in ("--set", each))],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, MARK: mark, "PYTHONPATH": str(ROOT)},
            start_new_session=True,
        )


def _look(seconds: float, mark: str, known: set[str], folder: Path) -> Look:
    """What is there now; `known` gets the segments that the run's processes have open."""
    processes = _processes(mark)
    for process in processes:
        known |= _opened(process)
    lines = sum(path.read_text().count("\n") for path in folder.glob("runs/*/metrics.jsonl"))
    return Look(
        seconds=seconds,
        processes=len(processes),
        memory_bytes=sum(map(_memory, processes)),
        files=sum(map(_files, processes)),
        segments=len(known & _segments()),
        steps=lines,
    )


def _judge(looks: list[Look], seconds: float, lag: int) -> Outcome:
    out = Outcome(f"soak of {seconds / 60:.0f} minutes at lag {lag}")
    began = next((look.seconds for look in looks if look.steps >= FIRST_STEPS), seconds)
    judged = [look for look in looks if look.seconds > began + WARM_UP * (seconds - began)]
    if len(judged) < 4:
        out.bar("looks", len(judged), "at least 4", holds=False)
        return out
    times = np.asarray([look.seconds for look in judged])
    for name in ("memory_bytes", "files", "processes", "segments"):
        values = np.asarray([float(getattr(look, name)) for look in judged])
        slope, start = np.polyfit(times, values, 1)
        level = start + slope * times[0]
        growth = slope * (times[-1] - times[0]) / max(level, 1.0)
        unit = 2**20 if name == "memory_bytes" else 1
        out.lines.append(f"{name}: {values[0] / unit:,.0f} → {values[-1] / unit:,.0f}, fitted {growth:+.2%}")
        out.rows.append({"what": name, "first": values[0], "last": values[-1], "growth": growth})
        what = "memory" if name == "memory_bytes" else name
        out.bar(f"growth of {what}", f"{growth:+.2%}", f"at most {MOST_GROWTH:.0%}", growth <= MOST_GROWTH)
    out.lines.append(f"{looks[-1].steps} steps")
    return out


def _processes(mark: str) -> list[int]:
    wanted = f"{MARK}={mark}".encode()
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if wanted in (entry / "environ").read_bytes().split(b"\0") and _is_running(entry):
                    found.append(int(entry.name))
    return found


def _is_running(entry: Path) -> bool:
    return (entry / "stat").read_text().rpartition(")")[2].split()[0] != "Z"


def _memory(process: int) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return 1024 * int(line.split()[1])
    return 0


def _files(process: int) -> int:
    with suppress(OSError):
        return len(os.listdir(f"/proc/{process}/fd"))
    return 0


def _opened(process: int) -> set[str]:
    """Names of the segments that a process has mapped."""
    with suppress(OSError):
        lines = Path(f"/proc/{process}/maps").read_text().splitlines()
        return {line.rpartition("/")[2] for line in lines if f" {SHARED}/" in line}
    return set()


def _segments() -> set[str]:
    """Weight buffers and object stores of anybody."""
    return {path.name for path in SHARED.iterdir()} if SHARED.is_dir() else set()


def _wait_until_gone(mark: str) -> list[int]:
    deadline = time.monotonic() + END_SECONDS
    while (left := _processes(mark)) and time.monotonic() < deadline:
        time.sleep(1.0)
    return left


if __name__ == "__main__":
    sys.exit(main())
