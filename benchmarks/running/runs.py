"""Flows compiled and run for measuring: what a run's logs and trace say, and ranks of one's own in it.

Takes a flow of benchmarks/flows/running or examples/; gives plans and runs. Keeps no folder of its own.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

from flowrl.api.compile import compile_spec
from flowrl.plan.plan import Plan
from flowrl.runtime.launchers.choose import make_launcher
from flowrl.runtime.launchers.contract import Launcher
from flowrl.runtime.launchers.inline import InlineLauncher
from flowrl.runtime.launchers.ray_cluster import SLOT, import_ray
from flowrl.runtime.run import RunOptions, run
from flowrl.runtime.session import SessionOptions
from flowrl.spec import load

ROOT = Path(__file__).resolve().parents[2]
FLOWS = ROOT / "benchmarks" / "flows" / "running"
EXAMPLES = ROOT / "examples"


@dataclass(frozen=True)
class Ran:
    folder: Path

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]

    @cached_property
    def spans(self) -> list[dict[str, Any]]:
        """Of trace.json: `name`, `ts` and `dur` in microseconds, `args` with instruction and step."""
        return [event for event in self._events if event.get("ph") == "X"]

    @property
    def pooled_spans(self) -> list[tuple[str, dict[str, Any]]]:
        """Each span with the name of its pool; of several stages `STAGE/POOL`."""
        names = {e["pid"]: e["args"]["name"] for e in self._events if e.get("name") == "process_name"}
        return [(names[span["pid"]].removeprefix("pool "), span) for span in self.spans]

    @cached_property
    def _events(self) -> list[dict[str, Any]]:
        return json.loads((self.folder / "trace.json").read_text())["traceEvents"]

    def step_seconds(self, skip: int = 2) -> list[float]:
        """Of every whole step but the first `skip`, in which memory is touched for the first time."""
        return [float(line["seconds"]) for line in self.metrics if not line.get("epilogue")][skip:]

    def median_step(self, skip: int = 2) -> float:
        return statistics.median(self.step_seconds(skip))


def plan_of(flow: Path, *sets: str) -> Plan:
    return compile_spec(load(flow, sets))


def run_plan(
    plan: Plan, folder: Path, launcher: str, threads: int, make: Callable[[str, int], Launcher] = make_launcher
) -> Ran:
    """Run a plan without a word."""
    session = SessionOptions(progress=False, threads=threads, make_launcher=make, stall_seconds=600.0)
    result = run(plan, RunOptions(runs=folder, launcher=launcher, session=session))
    return Ran(result.folder)


def with_ranks(make_rank: Callable[[Any], object]) -> Callable[[str, int], Launcher]:
    """A maker of launchers whose ranks `make_rank` makes."""

    def make(kind: str, threads: int) -> Launcher:
        if kind == "inline":
            return InlineLauncher(threads, make_rank)
        from flowrl.runtime.launchers.ray import RayLauncher

        return RayLauncher(threads, make_rank=make_rank)

    return make


def start_ray(slots: int, by_value: Sequence[ModuleType] = ()) -> Any:
    """A Ray of `slots` CPU slots in this process; modules that no worker could import are shipped by value."""
    ray = import_ray()
    for module in by_value:
        ray.cloudpickle.register_pickle_by_value(module)
    ray.init(
        num_cpus=slots, resources={SLOT: slots}, include_dashboard=False, log_to_driver=False, logging_level="ERROR"
    )
    return ray
