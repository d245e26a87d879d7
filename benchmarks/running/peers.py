"""GRPO end to end beside TRL's GRPOTrainer and verl: samples a second on two cores.

The same model, prompts, lengths, dtype, threads and optimizer (flows/running/grpo.yaml), each system in the fastest of
the ways listed here that it runs in unmodified, in turns of a process each. Samples a second are those of the median
step but the first three. Where the environments are missing the section says so and judges nothing.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.running import verl_grpo
from benchmarks.running.runs import FLOWS, ROOT, plan_of, run_plan
from benchmarks.searching.outcome import Outcome, Progress

LEAST = 1.5
THREADS = 2
SAMPLES = 64
STEPS, QUICK_STEPS, ROUNDS = 25, 8, 2
SKIPPED_STEPS = 3
MOST_SECONDS = 900.0
HERE = Path(__file__).resolve().parent

TRL_ROWS = (64, 16)
"""Samples of a forward pass that TRL is tried with."""
OURS: dict[str, tuple[str, ...]] = {
    "inline, hf, two threads": ("launcher=inline",),
    "ray, hf, two ranks": ("launcher=ray", "cluster.gpus_per_node=2"),
    "ray, hf, two ranks, ZeRO 1": (
        "launcher=ray",
        "cluster.gpus_per_node=2",
        "roles.actor_train.engine.zero_stage=1",
    ),
    "ray, vllm, two ranks": ("launcher=ray", "cluster.gpus_per_node=2", "vars.backend=vllm"),
}
"""Ways of running the flow: the launcher, and keys to set."""


@dataclass(slots=True)
class Way:
    name: str
    work: Callable[[], list[float]]
    """Gives seconds of steps."""
    rates: list[float] = field(default_factory=list[float])
    fault: str | None = None

    def turn(self) -> None:
        try:
            seconds = self.work()[SKIPPED_STEPS:]
        except (subprocess.SubprocessError, OSError, ValueError, IndexError) as error:
            self.fault = f"{type(error).__name__}: {error}"[:200]
            return
        if seconds:
            self.rates.append(SAMPLES / statistics.median(seconds))
        else:
            self.fault = "it reported no step"

    @property
    def rate(self) -> float:
        return max(self.rates, default=0.0)


def section(quick: bool = False, peers: Path | None = None) -> Outcome:
    out = Outcome("end to end beside TRL and verl")
    if peers is None or not (peers / "trl" / "bin" / "python").exists():
        out.lines.append("skipped: no environments of peers (--peers DIR; benchmarks/README.md says how to make them)")
        return out
    steps = QUICK_STEPS if quick else STEPS
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        model.mkdir()
        subprocess.run([peers / "trl/bin/python", HERE / "peers_model.py", model], check=True, capture_output=True)
        systems = {"FlowRL": _ours(model, steps), "TRL": _trl(peers, model, steps)}
        if (peers / "verl" / "bin" / "python").exists():
            systems["verl"] = _verl(peers, model, steps)
        _turns(systems, 1 if quick else ROUNDS)
    _tell(out, systems)
    return out


def _turns(systems: dict[str, list[Way]], rounds: int) -> None:
    """In turns, so that a minute in which the machine is busy falls on all of them."""
    progress, ways = Progress("peers"), [(name, way) for name, them in systems.items() for way in them]
    for turn in range(rounds):
        for place, (name, way) in enumerate(ways):
            if turn and way.fault is not None:
                continue
            way.turn()
            progress.tell(turn * len(ways) + place + 1, rounds * len(ways), f"{name} {way.name}")


def _tell(out: Outcome, systems: dict[str, list[Way]]) -> None:
    best: dict[str, Way] = {}
    for name, ways in systems.items():
        for way in ways:
            said = f"{way.rate:.1f} samples/s" if way.rates else f"did not run: {way.fault}"
            out.lines.append(f"{name}, {way.name}: {said}")
            out.rows.append({"system": name, "way": way.name, "samples_per_second": way.rate, "turns": way.rates})
        best[name] = max(ways, key=lambda way: way.rate)
    ours = best.pop("FlowRL")
    for name, other in best.items():
        if other.rates:
            ratio = ours.rate / other.rate
            found = f"{ratio:.2f} ({ours.name}; {other.name})"
            out.bar(f"samples/s over {name}", found, f"at least {LEAST}", ratio >= LEAST)


def _ours(model: Path, steps: int) -> list[Way]:
    """Each in a process of its own, as the peers are: `python -m benchmarks.running.peers MODEL STEPS SETS`."""

    def way(sets: Sequence[str]) -> Callable[[], list[float]]:
        command = [sys.executable, "-m", "benchmarks.running.peers", str(model), str(steps), *sets]
        return lambda: json.loads(_run(command, ROOT, {"PYTHONPATH": str(ROOT)}).splitlines()[-1])

    return [Way(name, way(sets)) for name, sets in OURS.items()]


def _trl(peers: Path, model: Path, steps: int) -> list[Way]:
    def way(rows: int) -> Callable[[], list[float]]:
        arguments = [str(peers / "trl/bin/python"), str(HERE / "trl_grpo.py"), str(model), str(steps)]
        command = [*arguments, str(THREADS), str(rows)]
        return lambda: json.loads(_run(command, model, {"PYTHONPATH": str(FLOWS)}).splitlines()[-1])["seconds"]

    return [Way(f"transformers generate, {rows} samples a pass", way(rows)) for rows in TRL_ROWS]


def _verl(peers: Path, model: Path, steps: int) -> list[Way]:
    def work() -> list[float]:
        with tempfile.TemporaryDirectory() as place:
            command = verl_grpo.command(peers / "verl/bin/python", model, steps, Path(place) / "out")
            return verl_grpo.step_seconds(_run(command, Path(place), verl_grpo.ENVIRONMENT))

    return [Way("FSDP2 and vLLM, with a CPU platform from outside", work)]


def _run(command: Sequence[str], folder: Path, environment: object) -> str:
    """What the command says on stdout."""
    given = {**os.environ, "OMP_NUM_THREADS": str(THREADS), **dict(environment)}  # type: ignore[call-overload]
    done = subprocess.run(
        command, cwd=folder, env=given, check=True, capture_output=True, text=True, timeout=MOST_SECONDS
    )
    return done.stdout


def _main() -> None:
    """One way of ours: prints the seconds of its steps as JSON."""
    model, steps, launcher, *sets = sys.argv[1:]
    plan = plan_of(FLOWS / "grpo.yaml", f"vars.model={model}", f"run.steps={steps}", *sets)
    with tempfile.TemporaryDirectory() as folder:
        ran = run_plan(plan, Path(folder), launcher.removeprefix("launcher="), THREADS)
        sys.stdout.write(json.dumps(ran.step_seconds(0)) + "\n")


if __name__ == "__main__":
    _main()
