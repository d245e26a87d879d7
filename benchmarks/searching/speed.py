"""The section of speed: how long placing takes from nothing, and how much memory the process has at most.

Each run is a process of its own, so that nothing is kept from another: it reads the flow, then times the search and
`place` (search, decisions, ledger of memory). The bar is on `place`: what a user waits for. Seconds of the processor,
the shortest of some runs; the ratio is to `yaml.safe_load` of the flow in the same process, the mean of LOADS of it.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from benchmarks.searching.outcome import Outcome, Progress

FLOWS = Path(__file__).resolve().parents[1] / "flows" / "search"
CASES: tuple[tuple[str, int, float], ...] = (
    ("five", 64, 0.3),
    ("five", 1024, 2.0),
    ("five", 16384, 10.0),
    ("ten", 1024, 10.0),
)
"""Flow, GPUs, seconds allowed."""
MEGABYTES = 1000.0
RUNS, QUICK_RUNS = 3, 1
LOADS = 100
"""A clock of the processor may tick in hundredths of a second."""
LIMIT_SECONDS = 200
"""Of the processor, after which a run is given up."""
_ROOT = Path(__file__).resolve().parents[2]


def section(*, quick: bool = False) -> Outcome:
    outcome, progress = Outcome("speed"), Progress("speed")
    cases = CASES[:1] if quick else CASES
    outcome.lines.append(f"{'':<28}{'place':>10}{'again':>10}{'ratio':>12}{'peak':>10}{'gap':>8}  placements")
    for number, (flow, devices, bar) in enumerate(cases, 1):
        rows = [_run(flow, devices) for _ in range(QUICK_RUNS if quick else RUNS)]
        row = min(rows, key=lambda each: each.get("place", LIMIT_SECONDS))
        outcome.rows.append(row)
        name = f"{row.get('roles', '?')} roles on {devices:,} GPUs"
        if "fault" in row:
            outcome.bar(f"{name}: place", row["fault"], f"<= {bar} s", False)
            continue
        outcome.lines.append(
            f"{name:<28}{row['place']:>8.3f} s{row['search']:>8.3f} s{row['place'] / row['reference']:>10,.0f} x"
            f"{row['megabytes']:>7.0f} MB{row['gap']:>8.2%}  {row['looked_at']:,} looked at, step {row['step']:.1f} s"
        )
        outcome.bar(f"{name}: place", f"{row['place']:.3f} s", f"<= {bar} s", row["place"] <= bar)
        outcome.bar(
            f"{name}: peak", f"{row['megabytes']:.0f} MB", f"< {MEGABYTES:.0f} MB", row["megabytes"] < MEGABYTES
        )
        progress.tell(number, len(cases))
    return outcome


def _run(flow: str, devices: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.searching.speed", flow, str(devices)]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    if done.returncode < 0:
        return {"flow": flow, "devices": devices, "fault": f"not done after {LIMIT_SECONDS} s"}
    if done.returncode:
        return {"flow": flow, "devices": devices, "fault": done.stderr.strip().rpartition("\n")[2]}
    return json.loads(done.stdout)


def measured(flow: str, devices: int) -> dict[str, Any]:
    """One run, in this process."""
    from flowrl.compiler.lower.cluster import lower_stage_cluster
    from flowrl.compiler.lower.graph import lower_stage
    from flowrl.compiler.lower.placement import lower_placement
    from flowrl.compiler.passes.pipeline import run_passes
    from flowrl.placement.cost.placed import needs_devices
    from flowrl.placement.place import place
    from flowrl.placement.shapes import shapes_of
    from flowrl.spec.pipeline import loads

    text = (FLOWS / f"{flow}.yaml").read_text(encoding="utf-8")
    reference = _seconds(lambda: [yaml.safe_load(text) for _ in range(LOADS)]) / LOADS
    document: dict[str, Any] = yaml.safe_load(text)
    document["cluster"] |= {"nodes": devices // document["cluster"]["gpus_per_node"]}
    document["step"]["prompts"] = max(document["step"]["prompts"], 2 * devices)
    spec = loads(json.dumps(document), folder=str(FLOWS))
    graph, _ = run_passes(lower_stage(spec, 0))
    given = (graph, lower_stage_cluster(spec, 0), lower_placement(spec, 0), shapes_of(graph, spec.folder))
    start = time.process_time()
    placement = place(*given)
    whole = time.process_time() - start
    report = placement.search
    return {
        "flow": flow,
        "devices": devices,
        "roles": sum(needs_devices(role) for role in graph.roles),
        "reference": reference,
        "place": whole,
        "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "gap": report.gap,
        "looked_at": report.looked_at,
        **_again(given),
    }


def _again(given: tuple[Any, ...]) -> dict[str, float]:
    """The search alone, once more: what the process keeps of models and devices alone is there; and the step found."""
    from flowrl.placement.search import search

    start = time.process_time()
    found = search(*given)
    return {"search": time.process_time() - start, "step": found.best.seconds}


def _seconds(work: Any) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_SECONDS, LIMIT_SECONDS))
    sys.stdout.write(json.dumps(measured(sys.argv[1], int(sys.argv[2]))) + "\n")
