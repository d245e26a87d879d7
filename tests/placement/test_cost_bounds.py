"""Bounds of a search are admissible: by brute force, no legal choice costs less than the bound of it."""

from __future__ import annotations

from functools import lru_cache, reduce
from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl.placement.cost.bound import Bounds, Least, either, step_bound
from flowrl.placement.cost.placed import HOST, placed_roles
from flowrl.placement.cost.role import RoleCosts, Site
from flowrl.placement.devices import allocate
from flowrl.placement.memory.pool import memory
from flowrl.placement.time.ops import OpTime
from flowrl.placement.time.step import placed_costs, step_seconds
from flowrl.plan.plan import Pool
from tests.placement.plans import Case, case, cases, kept_costs, plans


@lru_cache(maxsize=64)
def bounds_of(here_key: tuple[str, str]) -> tuple[RoleCosts, Bounds, tuple[Site, ...]]:
    """One for all draws of a case, and its sites of every size."""
    here = case(*here_key)
    costs = kept_costs(*here_key)
    group = here.cluster.groups[0].name
    taken = (allocate(here.cluster, [(group, count)])[0] for count in range(1, here.cluster.device_count + 1))
    sites = tuple(costs.site(here.pool("alone", devices)) for devices in taken)
    return costs, Bounds(costs, here.choices), sites


def ledger_peaks(here: Case, pool: Pool) -> tuple[int, bool]:
    """The worst phase of a pool on its devices, the start of engines aside, and whether all of them fit."""
    entries = memory(here.graph, (pool,), here.shapes, here.cluster, request=here.request)
    own = [entry for entry in entries if entry.pool != HOST]
    fits = all(entry.peak_bytes <= entry.limit_bytes for entry in own)
    return max(entry.peak_bytes for entry in own if not entry.phase.startswith("start ")), fits


@settings(max_examples=15, deadline=None)
@given(cases, st.data())
def test_no_choice_of_a_role_costs_less_than_its_bound(here: Case, data: st.DataObject) -> None:
    """Every layout, micro-batch and recomputation, on or off its devices, by its ledger lines."""
    costs, bounds, sites = bounds_of(here.key)
    site, role = data.draw(st.sampled_from(sites)), data.draw(st.sampled_from(here.roles))
    least, ops = bounds.least(role, site), costs.ops_of(role)
    reached = {op.id: False for op in ops}
    for entry in here.choices(role, site):
        pool = here.pool("alone", site.pool.devices, (entry,))
        peak, fits = ledger_peaks(here, pool)
        assert bounds.pool_bytes([role], site) <= peak
        assert bounds.may_fit([role], site) or not fits
        (placed,) = placed_roles(here.graph, pool, here.shapes, here.cluster, here.request)
        times = OpTime(costs.work, (pool,), here.cluster)
        busy = 0.0
        for op in ops:
            seconds = sum(line.value for line in times.on_devices(placed, op))
            assert least.seconds[op.id] <= seconds * (1 + 1e-12)
            reached[op.id] |= seconds == pytest.approx(least.seconds[op.id], rel=1e-9)
            busy += seconds * op.firings / max(1, op.every_steps)
        assert least.step_seconds <= busy * (1 + 1e-12)
    assert all(reached.values()), "a bound that no choice reaches"


@settings(max_examples=15, deadline=None)
@given(cases, st.data())
def test_no_pool_needs_less_than_its_bound(here: Case, data: st.DataObject) -> None:
    """Two roles in a pool, in every pair of their choices."""
    _, bounds, sites = bounds_of(here.key)
    site = data.draw(st.sampled_from(sites[:8]))
    pair = data.draw(st.lists(st.sampled_from(here.roles), min_size=2, max_size=2, unique=True))
    bound, may_fit = bounds.pool_bytes(pair, site), bounds.may_fit(pair, site)
    choices = list(product(*(here.choices(role, site) for role in pair)))
    if len(choices) > 24:
        choices = data.draw(st.lists(st.sampled_from(choices), min_size=24, max_size=24))
    for entries in choices:
        peak, fits = ledger_peaks(here, here.pool("both", site.pool.devices, entries))
        assert bound <= peak
        assert may_fit or not fits


@settings(max_examples=15, deadline=None)
@given(cases, st.data())
def test_bounds_of_at_most_so_many_devices_fall(here: Case, data: st.DataObject) -> None:
    _, bounds, sites = bounds_of(here.key)
    role = data.draw(st.sampled_from(here.roles))
    falling = bounds.falling(role, sites)
    for fewer, more in pairwise(falling):
        assert more.devices > fewer.devices
        assert more.peak_bytes <= fewer.peak_bytes
        assert more.left_bytes <= fewer.left_bytes
        assert more.step_seconds <= fewer.step_seconds
        assert more.device_seconds <= fewer.device_seconds
        assert all(more.seconds[op] <= each for op, each in fewer.seconds.items())
    last = falling[-1]
    assert last.step_seconds == min(bounds.least(role, site).step_seconds for site in sites)


@settings(max_examples=40, deadline=None)
@given(plans(), st.data())
def test_no_completion_is_faster_than_its_bound(plan: tuple[Case, tuple[Pool, ...]], data: st.DataObject) -> None:
    """Roles are taken out of a drawn plan one after another: its step is a completion of what is left of it each
    time."""
    here, pools = plan
    costs, bounds, sites = bounds_of(here.key)
    seconds = step_seconds(here.graph, pools, here.shapes, here.cluster, here.request)
    everywhere = (*sites, *(costs.site(pool) for pool in pools if pool.devices))
    anywhere = {role: reduce(either, [bounds.least(role, site) for site in everywhere]) for role in here.roles}
    free: dict[str, Least] = {}
    for role in data.draw(st.permutations(here.roles)):
        free[role] = anywhere[role]
        left = tuple(
            here.pool(pool.name, pool.devices, tuple(each for each in pool.roles if each.role not in free))
            for pool in pools
            if pool.devices
        )
        assert step_bound(costs, placed_costs(costs, left), free) <= seconds * (1 + 1e-9)


def test_a_whole_plan_is_its_own_bound() -> None:
    """With nothing left to decide, the bound of a colocated plan is its step."""
    here = case("ppo", "4xH100-80G")
    costs, _, sites = bounds_of(here.key)
    entries = tuple(here.choices(role, sites[-1])[0] for role in here.roles)
    pools = here.pools(here.pool("all", sites[-1].pool.devices, entries))
    seconds = step_seconds(here.graph, pools, here.shapes, here.cluster, here.request)
    assert step_bound(costs, placed_costs(costs, pools), {}) == pytest.approx(seconds, rel=1e-12)


def test_a_role_that_may_share_weights_has_nothing_to_move() -> None:
    """The reference of an adapter's trainer leaves its devices. While the trainer may still join it, whose frozen base
    is its weights, its moves are counted as nothing; in another pool they are its own. It leaves for the critic, beside
    which it works."""
    here = case("ppo of an adapter", "4xH100-80G")
    costs, bounds, sites = bounds_of(here.key)
    (trainer,), site = here.choices("actor_train", sites[1])[:1], sites[1]
    critic = here.choices("critic", site)[0]
    free = {role: bounds.least(role, site) for role in here.roles if role not in ("reference", "critic")}

    def bound(offloaded: bool, *, apart: bool) -> float:
        stays, leaves = here.choices("reference", site)[:2]
        pools = [here.pool("first", site.pool.devices, (leaves if offloaded else stays, critic))]
        if apart:
            pools.append(here.pool("second", ("node0/2", "node0/3"), (trainer,)))
        others = {role: least for role, least in free.items() if not (apart and role == "actor_train")}
        return step_bound(costs, placed_costs(costs, pools), others)

    assert bound(True, apart=False) == bound(False, apart=False)
    assert bound(True, apart=True) > bound(False, apart=True)
    leaves, away = (here.choices(role, site)[at] for role, at in (("reference", 1), ("actor_train", 2)))
    assert leaves.offloaded
    assert away.offloaded
    assert (
        costs.role_cost(leaves, site, (leaves, away)).move_seconds == 0.0 < costs.role_cost(leaves, site).move_seconds
    )
