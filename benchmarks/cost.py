"""How long the cost model takes: one role, its bound, the ledger of a plan, and placing four flows.

    python benchmarks/cost.py             # exits 1 if a line is over its bar

Each line is the shortest of some runs, in seconds of the processor, beside its bar and its ratio to a reference of the
same run: `yaml.safe_load` of the flow. A busy machine makes every line slower, the ratios much less; the number of
function calls, which is given too, not at all. Everything is made anew in each run, but for what the process keeps of
models and devices alone.
"""

from __future__ import annotations

import cProfile
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import yaml

from flowrl.compiler.emit.program import emit
from flowrl.compiler.lower.cluster import lower_stage_cluster
from flowrl.compiler.lower.graph import lower_stage
from flowrl.compiler.lower.placement import lower_placement
from flowrl.compiler.passes.pipeline import run_passes
from flowrl.graph.graph import Graph
from flowrl.machine.cluster import Cluster
from flowrl.machine.shape import ModelShape
from flowrl.placement.choices import Choices
from flowrl.placement.cost.bound import Bounds, step_bound
from flowrl.placement.cost.role import RoleCosts, Site
from flowrl.placement.cost.workload import Workload
from flowrl.placement.memory.pool import memory
from flowrl.placement.place import place
from flowrl.placement.request import Placement, PlacementRequest
from flowrl.placement.shapes import shapes_of
from flowrl.placement.sync.stage import edge_syncs
from flowrl.placement.time.instructions import duration_lines
from flowrl.placement.time.step import placed_costs
from flowrl.plan.plan import Pool, StageRun
from flowrl.spec import load

FLOWS = Path(__file__).resolve().parent / "flows" / "cost"
NAMES = ("grpo_8", "ppo_16", "ppo_70b_64", "moe_128")
RUNS = 15
MANY = 2000
"""Questions of one run, where one takes microseconds."""
MEMOISED_SECONDS = 50e-6
LEDGER_SECONDS = 20e-3


@dataclass(frozen=True, slots=True)
class Flow:
    """One flow, lowered and placed."""

    text: str
    graph: Graph
    cluster: Cluster
    request: PlacementRequest
    shapes: dict[str, ModelShape]
    placement: Placement

    def costs(self) -> RoleCosts:
        return RoleCosts(self.workload(), self.cluster)

    def workload(self) -> Workload:
        return Workload(self.graph, self.shapes, self.request)

    def place(self) -> Placement:
        return place(self.graph, self.cluster, self.request, self.shapes)

    @property
    def pools(self) -> list[Pool]:
        return [pool for pool in self.placement.pools if pool.devices]


def flow(path: Path) -> Flow:
    spec = load(path)
    graph, _ = run_passes(lower_stage(spec, 0))
    cluster, request, shapes = lower_stage_cluster(spec, 0), lower_placement(spec, 0), shapes_of(graph, spec.folder)
    placement = place(graph, cluster, request, shapes)
    return Flow(path.read_text(encoding="utf-8"), graph, cluster, request, dict(shapes), placement)


def shortest(work: Callable[[], object], runs: int = RUNS, many: int = 1) -> float:
    """Seconds of the processor for `work`, the shortest of some runs of `many` each."""
    seconds: list[float] = []
    for _ in range(runs):
        start = time.process_time()
        for _ in range(many):
            work()
        seconds.append((time.process_time() - start) / many)
    return min(seconds)


def calls(work: Callable[[], object]) -> int:
    """Of Python and built-in functions in one run."""
    profile = cProfile.Profile()
    profile.runcall(work)
    return sum(each.callcount for each in profile.getstats())


def row(words: str, seconds: float, bar: float | None, reference: float, count: int) -> bool:
    """Print a line of the table; whether it holds its bar."""
    holds = bar is None or seconds <= bar
    shown = "" if bar is None else f"{bar * 1e3:8.2f} ms   {'ok' if holds else 'OVER'}"
    sys.stdout.write(f"{words:<44}{seconds * 1e3:10.4f} ms{seconds / reference:10.4f} x{count:10,}  {shown}\n")
    sys.stdout.flush()
    return holds


def measured(name: str) -> bool:
    """The lines of one flow; whether all of them hold."""
    here = flow(FLOWS / f"{name}.yaml")
    reference = shortest(lambda: yaml.safe_load(here.text))

    def timed(words: str, work: Callable[[], object], bar: float | None = None, many: int = 1, each: int = 1) -> bool:
        return row(words, shortest(work, many=many) / each, bar, reference, calls(work) // each)

    sys.stdout.write(f"{name}: {'; '.join(_pool_text(pool) for pool in here.pools)}\n")
    timed("  yaml.safe_load of it (reference)", lambda: yaml.safe_load(here.text))
    held = [*_roles(here, timed), *_plans(here, timed)]
    return all(held)


def _pool_text(pool: Pool) -> str:
    return f"{', '.join(entry.role for entry in pool.roles)} on {len(pool.devices)}"


Timed = Callable[..., bool]


def _roles(here: Flow, timed: Timed) -> list[bool]:
    """Of the roles of the first pool, in the layouts that were chosen."""
    pool, costs = here.pools[0], here.costs()
    site, count, entry = costs.site(pool), len(pool.roles), pool.roles[0]
    roles = costs.pool_costs(pool.roles, site)

    def fresh() -> None:
        anew = here.costs()
        for cost in anew.pool_costs(pool.roles, anew.site(pool)):
            for op in anew.ops_of(cost.name):
                cost.seconds[op.id]

    def bounds() -> None:
        costs = here.costs()
        anew, there = Bounds(costs, Choices(costs).of), costs.site(pool)
        for each in pool.roles:
            anew.least(each.role, there)

    return [
        timed("  role_cost, asked again", lambda: costs.role_cost(entry, site, pool.roles), MEMOISED_SECONDS, MANY),
        timed("  role_cost, first time, a role", fresh, each=count),
        timed("  bound of a role, first time", bounds, each=count),
        timed("  phases of a pool from costs", lambda: costs.pool_needs(roles, site), many=50),
    ]


def _plans(here: Flow, timed: Timed) -> list[bool]:
    costs = here.costs()
    bounds = Bounds(costs, Choices(costs).of)
    placed = placed_costs(costs, here.placement.pools)
    sites: dict[str, Site] = {name: home.site for name, home in placed.items()}
    half = dict(list(placed.items())[: len(placed) // 2])
    free = {name: bounds.least(name, sites[name]) for name in placed if name not in half}
    program = emit(here.graph, here.placement.pools, StageRun(steps=1))

    def ledger() -> None:
        """All lines of a plan: memory, seconds of instructions, bytes of weights edges."""
        pools, shapes, cluster, request = here.placement.pools, here.shapes, here.cluster, here.request
        memory(here.graph, pools, shapes, cluster, request=request, decisions=here.placement.decisions)
        duration_lines(here.graph, pools, program, shapes, cluster, request=request)
        edge_syncs(here.graph, pools, shapes, cluster, request)

    return [
        timed("  bound of a step, half of the roles placed", lambda: step_bound(costs, half, free), many=50),
        timed("  full ledger of the plan", ledger, LEDGER_SECONDS),
        timed("  place", here.place),
    ]


def main() -> int:
    sys.stdout.write(f"{'':<44}{'shortest':>13}{'ratio':>12}{'calls':>10}  {'bar':>11}\n")
    held = [measured(name) for name in NAMES]
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
