"""The plan's seconds beside the measured ones: every CPU example planned with a profile of this machine, and run.

The profile is measured first, as `flowrl profile` does. A step and each instruction are medians over the steps but the
first three. Instructions that take less than a hundredth of the step are printed and not judged.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.running.runs import EXAMPLES, Ran, run_plan
from benchmarks.searching.outcome import Outcome
from flowrl.api.compile import compile_spec
from flowrl.api.measure import measure_machine, profile_of
from flowrl.machine.profile import Profile
from flowrl.plan.plan import Plan, StagePlan
from flowrl.spec import load

STEP, INSTRUCTION = 0.25, 0.40
JUDGED = 0.01
"""Share of the step from which an instruction is judged."""
SKIPPED_STEPS = 3


@dataclass(frozen=True, slots=True)
class Example:
    name: str
    launcher: str
    sets: tuple[str, ...]


def examples(quick: bool) -> Sequence[Example]:
    """Shortened. The first stage of two goes on to its gate: what the second one trains on is what the first has
    learned, as groups of equal rewards have no gradient and take less."""
    steps = 10 if quick else 40
    ungated = ("stages.0.gate.at_least=0", "stages.0.gate.when=end", f"stages.0.run.steps={steps}")
    both = (f"stages.1.run.steps={steps}", *(ungated if quick else ()))
    return (
        Example("quickstart.yaml", "inline", both),
        Example("ppo.yaml", "inline", (f"run.steps={steps}",)),
        Example("grpo_ray.yaml", "ray", both),
    )


def section(quick: bool = False) -> Outcome:
    out = Outcome("prediction")
    measured = measure_machine(quick, lambda moment: None)
    profile = profile_of(measured)
    out.lines.append(
        f"profile measured in {measured.seconds:.0f} s; missing: {', '.join(measured.missing) or 'nothing'}"
    )
    for example in examples(quick):
        _example(out, example, profile)
    return out


def _example(out: Outcome, example: Example, profile: Profile) -> None:
    plan = compile_spec(load(EXAMPLES / example.name, example.sets), profile=profile)
    with tempfile.TemporaryDirectory() as folder:
        sys.stderr.write(f"prediction: {example.name}\n")
        ran = run_plan(plan, Path(folder), example.launcher, 2)
        for stage in plan.stages:
            _stage(out, example, plan, stage, ran)


def _stage(out: Outcome, example: Example, plan: Plan, stage: StagePlan, ran: Ran) -> None:
    name = f"{example.name} {stage.name}"
    lines = [line for line in ran.metrics if line["stage"] == stage.name and not line.get("epilogue")]
    step = statistics.median(float(line["seconds"]) for line in lines[SKIPPED_STEPS:])
    planned = stage.estimate.step_seconds
    out.lines.append(
        f"{name}: step planned {planned * 1e3:.1f} ms, measured {step * 1e3:.1f} ms ({planned / step:.2f})"
    )
    off: list[str] = []
    for instruction, seconds in _instructions(plan, stage, ran).items():
        expected = stage.estimate.durations.get(instruction, 0.0)
        ratio = expected / seconds if seconds else 1.0
        judged = max(seconds, expected) >= JUDGED * step
        wrong = judged and abs(ratio - 1) > INSTRUCTION
        off += [instruction] * wrong
        mark = "!" if wrong else " " if judged else "."
        out.lines.append(f"  {mark} {instruction:44s} {expected * 1e3:9.2f} {seconds * 1e3:9.2f} ms  {ratio:.2f}")
        out.rows.append({"flow": name, "instruction": instruction, "planned": expected, "measured": seconds})
    out.rows.append({"flow": name, "instruction": None, "planned": planned, "measured": step})
    out.bar(f"{name}, step", f"{planned / step:.2f} of measured", f"within {STEP:.0%}", abs(planned / step - 1) <= STEP)
    out.bar(f"{name}, instructions", ", ".join(off) or "all", f"each within {INSTRUCTION:.0%}", not off)


def _instructions(plan: Plan, stage: StagePlan, ran: Ran) -> dict[str, float]:
    """Median seconds of each instruction of the stage."""
    of_pool = {pool.name for pool in stage.pools}
    found: dict[str, list[float]] = {}
    for pool, span in ran.pooled_spans:
        own = pool.removeprefix(f"{stage.name}/") if len(plan.stages) > 1 else pool
        if span["args"]["step"] > SKIPPED_STEPS and own in of_pool and (own != pool or len(plan.stages) == 1):
            found.setdefault(span["name"], []).append(span["dur"] * 1e-6)
    return {name: statistics.median(seconds) for name, seconds in sorted(found.items())}
