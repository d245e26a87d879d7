"""The section of the optimum: the search beside the oracle on random instances, gap 0 demanded.

Both get the same menu of choices and the same costs of one role. What each of them names is timed and weighed once more
by the model of plans (`step_seconds`, `memory`), so a slip of the oracle shows as well as one of the search.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any

from msgspec import structs

from benchmarks.searching.blocks import Flags, Numbers, homes, set_partitions
from benchmarks.searching.instances import MOST_OPTIONS, Instance, Menu, instance
from benchmarks.searching.oracle import Answer, Oracle, Way, worth
from benchmarks.searching.outcome import Outcome, Progress
from flowrl.diag.diagnostic import FlowError
from flowrl.placement.cost.role import RoleCosts
from flowrl.placement.cost.workload import Workload
from flowrl.placement.memory.pool import memory
from flowrl.placement.search import search
from flowrl.placement.time.step import step_seconds
from flowrl.plan.plan import Pool

SEED = 1
WANTED, QUICK = 300, 30
"""Instances that have a placement."""
OTHERS_EVERY = 4
"""One instance in so many is placed for other objectives too."""
SAME = 1e-9
CHECKED = 2
"""Placements of an instance, drawn at random: the oracle's seconds and verdict are compared with the model's."""


@dataclass(frozen=True)
class Found:
    """What search and oracle say of one instance."""

    instance: Instance
    answer: Answer
    ours: float | None
    """Seconds of the search's placement; None if it says that none fits."""
    best: float | None
    faults: tuple[str, ...]
    objectives: int = 0
    """Other objectives that were asked for."""

    @property
    def binding(self) -> bool:
        """Whether memory matters: the best placement that it leaves is slower, or there is none."""
        return self.best is None or self.answer.free_seconds < self.best * (1 - SAME)

    @property
    def gap(self) -> float:
        if self.ours is None or self.best is None:
            return 0.0 if self.ours is self.best else float("inf")
        return max(0.0, self.ours / self.best - 1)


def section(*, quick: bool = False, cases: tuple[str, ...] = ()) -> Outcome:
    outcome, found = Outcome("oracle"), list[Found]()
    wanted, placed, number, progress = QUICK if quick else WANTED, 0, 0, Progress("oracle")
    while placed < wanted and not cases:
        found.append(compared(instance(SEED, number), others=number % OTHERS_EVERY == 0))
        placed += found[-1].best is not None
        number += 1
        progress.tell(placed, wanted, f"{sum(bool(each.gap or each.faults) for each in found)} with a gap")
    for case in cases:
        seed, _, at = case.partition("-")
        found.append(compared(instance(int(seed), int(at)), others=True))
        outcome.lines += _told(found[-1])
    _tell(outcome, found, wanted if not cases else 0, quick=quick)
    return outcome


def compared(given: Instance, *, others: bool = False) -> Found:
    """`others`: with other objectives than a short step."""
    costs = RoleCosts(Workload(given.graph, given.shapes, given.request), given.cluster)
    oracle = Oracle(given, Menu(costs, given.name, given.options))
    answer = oracle.answer()
    ours, faults = _searched(given)
    faults += checked(oracle)
    way = answer.best
    if way is None:
        return Found(given, answer, ours, None, faults)
    best = _seconds(given, oracle.pools(way))
    if abs(best / way.seconds - 1) > SAME or not _fits(given, oracle.pools(way)):
        faults += (f"the oracle's best of {way.seconds} s is one of {best} s, or does not fit",)
    asked = [each for each in _asked(given, best) if others]
    for objective, at_most in asked:
        faults += _other(given, answer, objective, at_most)
    return Found(given, answer, ours, best, faults, len(asked))


def _asked(given: Instance, best: float) -> list[tuple[str, float | None]]:
    """Objectives, and the longest step allowed."""
    return [
        ("gpu_seconds", None),
        ("price", 1.5 * best),
        ("gpus", 1.5 * best),
        ("gpus", None),
        ("step_time", 0.5 * best),
    ]


def _other(given: Instance, answer: Answer, objective: str, at_most: float | None) -> tuple[str, ...]:
    """What is wrong with the placement of another objective."""
    request = structs.replace(given.request, objective=objective, step_seconds_at_most=at_most)
    bound = float("inf") if at_most is None else at_most
    least = answer.least(objective, given.cluster, bound)
    told = f"{objective} with steps of at most {bound:.6g} s"
    found = _found(replace(given, request=request))
    if found is None or least is None:
        return () if found is least else (f"{told}: oracle {least}, search {'none' if found is None else 'some'}",)
    pools = [pool for pool in found.best.laid.pools if pool.devices]
    seconds, homes = _seconds(given, pools), [(_group(given, pool), len(pool.devices)) for pool in pools]
    ours = worth(objective, seconds, homes, given.cluster)
    if ours > least * (1 + SAME) or seconds > bound * (1 + SAME) or not _fits(given, pools):
        return (f"{told}: oracle {least}, search {ours} with {seconds} s",)
    return ()


def _group(given: Instance, pool: Pool) -> str:
    groups = given.cluster.groups
    return pool.devices[0].split("/")[0] if len(groups) > 1 else groups[0].name


def _searched(given: Instance) -> tuple[float | None, tuple[str, ...]]:
    """Seconds of the best that the search finds, and what is wrong with it."""
    found = _found(given)
    if found is None:
        return None, ()
    best = found.best
    pools = [pool for pool in best.laid.pools if pool.devices]
    seconds, faults = _seconds(given, pools), list[str]()
    if abs(seconds / best.seconds - 1) > SAME:
        faults.append(f"the search says {best.seconds} s of pools of {seconds} s")
    if not _fits(given, pools):
        faults.append("the search's pools do not fit")
    if found.gap or not found.proved:
        faults.append(f"the search reports a gap of {found.gap} on {given.cluster.device_count} devices")
    costs = RoleCosts(Workload(given.graph, given.shapes, given.request), given.cluster)
    menu = Menu(costs, given.name, given.options)
    for pool in pools:
        site = costs.site(pool)
        faults += [f"{entry} is not on the menu" for entry in pool.roles if entry not in menu.of(entry.role, site)]
    return seconds, tuple(faults)


def _found(given: Instance) -> Any:
    """What the search finds with the instance's menu; None if it says that nothing fits."""
    costs = RoleCosts(Workload(given.graph, given.shapes, given.request), given.cluster)
    menu = Menu(costs, given.name, given.options)
    try:
        found = search(given.graph, given.cluster, given.request, given.shapes, choices=menu)
    except FlowError:
        return None
    return found if found.best.laid.fits and not found.best.starved else None


def _seconds(given: Instance, pools: list[Pool] | tuple[Pool, ...]) -> float:
    return step_seconds(given.graph, pools, given.shapes, given.cluster, given.request)


def _fits(given: Instance, pools: list[Pool] | tuple[Pool, ...]) -> bool:
    needs = memory(given.graph, pools, given.shapes, given.cluster, request=given.request)
    return all(each.peak_bytes <= each.limit_bytes for each in needs)


def checked(oracle: Oracle, placements: int = CHECKED) -> tuple[str, ...]:
    """Placements at random, choices at random, whether they fit or not: what the oracle and the model differ in."""
    draw, faults = Random(oracle.instance.name), list[str]()
    parts = list(set_partitions(oracle.instance.roles))
    groups = [(group.name, group.nodes * group.devices_per_node) for group in oracle.instance.cluster.groups]
    for _ in range(placements):
        shape = draw.choice(parts)
        ways = list(homes(len(shape), groups))
        if not ways:
            continue
        where = draw.choice(ways)
        blocks, devices = oracle.at(shape, where)
        if any(block.empty for block in blocks):
            continue
        sizes = {role: len(block.choices[role]) for block in blocks for role in block.roles}
        at = tuple(draw.randrange(sizes[role]) for role in oracle.instance.roles)
        seconds = _at(oracle.clock.seconds(blocks, devices), at)
        fits = all(bool(_at(block.fits, at)) for block in blocks) and bool(_at(oracle.host.fits(blocks, devices), at))
        pools = oracle.pools(Way(shape, where, seconds, at))
        if abs(_seconds(oracle.instance, pools) / seconds - 1) > SAME:
            faults.append(f"the oracle says {seconds} s of pools of {_seconds(oracle.instance, pools)} s: {pools}")
        if fits != _fits(oracle.instance, pools):
            faults.append(f"the oracle says {'fits' if fits else 'does not fit'} of {pools}")
    return tuple(faults)


def _at(values: Numbers | Flags, at: tuple[int, ...]) -> float:
    """One entry of an array that is as long as 1 along axes that do not matter to it."""
    return float(values[tuple(place if size > 1 else 0 for place, size in zip(at, values.shape, strict=True))])


def _tell(outcome: Outcome, found: list[Found], wanted: int, *, quick: bool) -> None:
    placed = [each for each in found if each.best is not None]
    mixed, binding = sum(e.instance.mixed for e in placed), sum(e.binding for e in placed)
    worst = max((each.gap for each in found), default=0.0)
    wrong = [each for each in found if each.gap > SAME or each.faults]
    roles = sorted({(len(each.instance.roles), each.instance.options) for each in placed})
    outcome.lines += [
        f"{len(placed)} instances with a placement, {len(found) - len(placed)} without: both say so",
        f"{mixed} on mixed devices, {binding} with memory binding, "
        f"{sum(len(e.instance.roles) == 5 for e in placed)} of 5 roles, "
        f"{sum(e.instance.cluster.device_count > 8 for e in placed)} on 9 to 16 devices, "
        f"{sum(o == MOST_OPTIONS for _, o in roles) and sum(e.instance.options == MOST_OPTIONS for e in placed)}"
        f" with {MOST_OPTIONS} options a role",
        f"{sum(each.answer.looked_at for each in found):,} placements enumerated; "
        f"{sum(each.objectives for each in found)} times another objective or a bound on the step",
    ]
    for each in wrong[:12]:
        outcome.lines += _told(each)
    outcome.rows += [_row(each) for each in found]
    few = 1 if quick or not wanted else 100
    outcome.bar("gap to the oracle", f"{worst:.2%} at most, {len(wrong)} instances wrong", "0", not wrong)
    if wanted:
        outcome.bar("instances", len(placed), f">= {wanted}", len(placed) >= wanted)
        outcome.bar("on mixed devices", mixed, f">= {few}", mixed >= few)
        outcome.bar("with memory binding", binding, f">= {few}", binding >= few)


def _row(each: Found) -> dict[str, object]:
    return {
        "instance": each.instance.name,
        "roles": len(each.instance.roles),
        "devices": each.instance.cluster.device_count,
        "mixed": each.instance.mixed,
        "options": each.instance.options,
        "placements": each.answer.looked_at,
        "search_seconds": each.ours,
        "oracle_seconds": each.best,
        "free_seconds": each.answer.free_seconds,
        "gap": each.gap,
        "faults": list(each.faults),
    }


def _told(each: Found) -> list[str]:
    way = each.answer.best
    where = (
        ""
        if way is None
        else ", ".join(
            f"{'+'.join(roles)} on {count} of {group}"
            for roles, (group, count) in zip(way.blocks, way.homes, strict=True)
        )
    )
    ours = "none fits" if each.ours is None else f"{each.ours:.6f} s"
    best = "none fits" if each.best is None else f"{each.best:.6f} s ({where})"
    head = f"  {each.instance.name}: search {ours}, oracle {best}; --case {each.instance.name} shows it again"
    return [head, *(f"    {fault}" for fault in each.faults)]
