"""A step by arrays is the step by names, to the last bit: of whole plans, and of bounds with roles that are free."""

from __future__ import annotations

from functools import lru_cache

from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl.placement.cost.placed import needs_devices
from flowrl.placement.time.fast_step import NOWHERE, StepEvaluator, free_role
from flowrl.placement.time.step import placed_costs, steady_seconds
from flowrl.plan.plan import Pool
from tests.placement.plans import Case, kept_costs, plans


@lru_cache
def evaluator(flow: str, cluster: str) -> StepEvaluator:
    return StepEvaluator(kept_costs(flow, cluster))


@settings(max_examples=150, deadline=None)
@given(plans())
def test_a_step_of_a_plan(plan: tuple[Case, tuple[Pool, ...]]) -> None:
    here, pools = plan
    costs, step = kept_costs(*here.key), evaluator(*here.key)
    homes = placed_costs(costs, pools)
    whole, places = step.of_homes(homes)
    assert step.seconds(whole, places, step.sync_seconds(homes)) == steady_seconds(costs, homes)
    renumbered = [each if each == NOWHERE else 3 - each for each in places]
    assert step.seconds(whole, renumbered, 1.5) == step.seconds(whole, places, 1.5)


@settings(max_examples=150, deadline=None)
@given(plans(), st.data())
def test_a_bound_with_free_roles(plan: tuple[Case, tuple[Pool, ...]], data: st.DataObject) -> None:
    here, pools = plan
    costs, step = kept_costs(*here.key), evaluator(*here.key)
    homes = placed_costs(costs, pools)
    free = data.draw(st.sets(st.sampled_from(sorted(homes)), max_size=len(homes)))
    seconds = st.floats(0.0, 1e4, allow_nan=False)
    least = {role: {op.id: data.draw(seconds) for op in costs.ops_of(role)} for role in sorted(free)}
    placed = {role: home for role, home in homes.items() if role not in free}
    whole, places = step.of_homes(placed, least)
    assert step.seconds(whole, places, step.sync_seconds(placed)) == steady_seconds(costs, placed, least)


@settings(max_examples=60, deadline=None)
@given(plans())
def test_the_quick_way_in(plan: tuple[Case, tuple[Pool, ...]]) -> None:
    """As a search fills the arrays: a role's places and seconds once, then any pools."""
    here, pools = plan
    costs, step = kept_costs(*here.key), evaluator(*here.key)
    homes = placed_costs(costs, pools)
    firing, moves, places = step.host(), [0.0] * len(step.ops), [NOWHERE] * len(step.ops)
    names = [pool.name for pool in pools]
    for name, home in homes.items():
        assert step.places(name) == tuple(at for at, op in enumerate(here.graph.ops) if op.role == name)
        for at, seconds in step.of_role(home.cost):
            firing[at], moves[at], places[at] = seconds, step.moves(home.cost), names.index(home.site.pool.name)
    got = step.seconds(step.in_step(firing, moves, places), places, step.sync_seconds(homes))
    assert got == steady_seconds(costs, homes)


def test_pools_and_free_roles_are_told_apart() -> None:
    """Two ops of one pool follow one another; of a free role they add up, and hold nobody up."""
    step, graph = evaluator("ppo", "4xH100-80G"), kept_costs("ppo", "4xH100-80G").graph
    ones = [1.0 if needs_devices(graph.role(op.role)) else 0.0 for op in graph.ops]
    apart = {role.name: number for number, role in enumerate(graph.roles)}
    one = [NOWHERE if not each else 0 for each in ones]
    several = [NOWHERE if not each else apart[op.role] for each, op in zip(ones, graph.ops, strict=True)]
    free = [NOWHERE if not each else free_role(apart[op.role]) for each, op in zip(ones, graph.ops, strict=True)]
    assert step.seconds(ones, one, 0.0) == sum(ones)
    assert step.seconds(ones, several, 0.0) < sum(ones)
    assert step.seconds(ones, free, 0.0) <= step.seconds(ones, several, 0.0)
