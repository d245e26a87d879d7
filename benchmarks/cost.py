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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import msgspec
import yaml

from flowrl.compiler.emit.program import emit
from flowrl.compiler.lower.cluster import lower_stage_cluster
from flowrl.compiler.lower.graph import lower_stage
from flowrl.compiler.lower.placement import lower_placement
from flowrl.compiler.passes.pipeline import run_passes
from flowrl.graph.graph import EdgeKind, Graph
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
from flowrl.placement.sync import edge as sync_edge
from flowrl.placement.sync import shares
from flowrl.placement.sync.stage import edge_syncs
from flowrl.placement.time import decode
from flowrl.placement.time.instructions import duration_lines
from flowrl.placement.time.step import placed_costs
from flowrl.plan.plan import Pool, StageRun
from flowrl.spec import load, loads

FLOWS = Path(__file__).resolve().parent / "flows" / "cost"
NAMES = ("grpo_8", "ppo_16", "ppo_70b_64", "moe_128")
RUNS = 9
MANY = 2000
"""Questions of one run, where one takes microseconds."""
MEMOISED_SECONDS = 1e-6
FRESH_SECONDS = 150e-6
"""Of a role in a layout that was not seen before, in the mean over what a search looks at, with all seconds of its
ops."""
BOUND_SECONDS = 5e-3
HAND_OVER_SECONDS = 0.3e-3
SITE_SECONDS = 0.2e-3
LEDGER_SECONDS = 20e-3
MOST_DEVICES = 16_384
MANY_CHOICES = 100


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


def flow(path: Path, changes: Mapping[str, str] | None = None) -> Flow:
    """The flow of a file, with some of its text replaced."""
    text = path.read_text(encoding="utf-8")
    for old, new in (changes or {}).items():
        text = text.replace(old, new)
    spec = loads(text, folder=str(path.parent)) if changes else load(path)
    graph, _ = run_passes(lower_stage(spec, 0))
    cluster, request, shapes = lower_stage_cluster(spec, 0), lower_placement(spec, 0), shapes_of(graph, spec.folder)
    placement = place(graph, cluster, request, shapes)
    return Flow(text, graph, cluster, request, dict(shapes), placement)


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


def forget(*modules: ModuleType) -> None:
    """What functions of these modules have kept."""
    for each in (each for module in modules for each in vars(module).values()):
        if hasattr(each, "cache_clear"):
            each.cache_clear()


def row(words: str, seconds: float, bar: float | None, reference: float, count: int) -> bool:
    """Print a line of the table; whether it holds its bar."""
    holds = bar is None or seconds <= bar
    shown = "" if bar is None else f"{bar * 1e3:8.2f} ms   {'ok' if holds else 'OVER'}"
    sys.stdout.write(f"{words:<44}{seconds * 1e3:10.4f} ms{seconds / reference:10.4f} x{count:10,}  {shown}\n")
    sys.stdout.flush()
    return holds


def measured(name: str, changes: Mapping[str, str] | None = None) -> bool:
    """The lines of one flow; whether all of them hold."""
    here = flow(FLOWS / f"{name}.yaml", changes)
    reference = shortest(lambda: yaml.safe_load(here.text))

    def timed(words: str, work: Callable[[], object], bar: float | None = None, many: int = 1, each: int = 1) -> bool:
        return row(words, shortest(work, many=many) / each, bar, reference, calls(work) // each)

    sys.stdout.write(f"{name}: {'; '.join(_pool_text(pool) for pool in here.pools)}\n")
    timed("  yaml.safe_load of it (reference)", lambda: yaml.safe_load(here.text))
    held = [*_roles(here, timed), *_places(here, timed), *_plans(here, timed)]
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
        timed("  role_cost with its search, first time, a role", fresh, each=count),
        timed("  bound of a role, first time", bounds, BOUND_SECONDS, each=count),
        timed("  phases of a pool from costs", lambda: costs.pool_needs(roles, site), many=50),
    ]


def _places(here: Flow, timed: Timed) -> list[bool]:
    """Of every choice of every role on four sizes of pools; of sites, and of the first weights edge."""
    group, known = here.cluster.groups[0], here.costs()
    counts = [each for each in (8, 16, 32, 64) if each <= here.cluster.device_count]
    menu, roles = Choices(known), [role for role in here.graph.roles if role.model is not None]
    asked = [
        (entry, count)
        for count in counts
        for role in roles
        for entry in menu.of(role.name, known.site_of(group.name, count))
    ]
    edge = next(each for each in here.graph.edges if each.kind is EdgeKind.WEIGHTS)
    site = known.site_of(group.name, counts[-1])
    giver, taker = (menu.of(end.split(".")[0], site)[::3][:12] for end in (edge.source, edge.target))
    pairs = [(known.role_cost(one, site), known.role_cost(other, site)) for one in giver for other in taker]
    huge = msgspec.structs.replace(group, nodes=MOST_DEVICES // group.devices_per_node)
    wide = msgspec.structs.replace(here.cluster, groups=(huge,))

    def fresh() -> None:
        forget(decode)
        anew = here.costs()
        sites = {count: anew.site_of(group.name, count) for count in counts}
        for entry, count in asked:
            cost = anew.role_cost(entry, sites[count])
            for op in anew.ops_of(entry.role):
                cost.seconds[op.id]

    def hand_overs() -> None:
        anew = here.costs()
        forget(sync_edge, shares)
        for one, other in pairs:
            anew.hand_over(edge, (one, site), (other, site))

    # Of a few choices most is what a search works out once.
    bar = FRESH_SECONDS if len(asked) > MANY_CHOICES else None
    costs = RoleCosts(here.workload(), wide)
    firsts = iter(range(10**9))
    return [
        timed(f"  role_cost in {len(asked):,} choices, a choice", fresh, bar, each=len(asked)),
        timed("  hand_over, first time", hand_overs, HAND_OVER_SECONDS, each=len(pairs)),
        timed(
            f"  site of {MOST_DEVICES:,} devices",
            lambda: costs.site_of(group.name, MOST_DEVICES - next(firsts) % 8192),
            SITE_SECONDS,
            many=50,
        ),
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
    held.append(measured("ppo_70b_64", {"backend: megatron": "backend: fsdp"}))
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
