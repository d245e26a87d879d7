"""A step by arrays is the step by names, to the last bit: of whole plans, and of bounds with roles that are free."""

from __future__ import annotations

from functools import lru_cache

from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl.placement.cost.placed import needs_devices
from flowrl.placement.time.event_graph import FREE, Spot
from flowrl.placement.time.fast_step import NO_SECONDS, StepEvaluator
from flowrl.placement.time.step import Home, hand_over, placed_costs, steady_seconds
from flowrl.plan.plan import Pool
from tests.placement.plans import Case, kept_costs, plans


@lru_cache
def evaluator(flow: str, cluster: str) -> StepEvaluator:
    return StepEvaluator(kept_costs(flow, cluster))


def by_arrays(here: Case, homes: dict[str, Home], least: dict[str, dict[str, float]], first: int = 0) -> float:
    """As a search fills the arrays; pools are numbered from `first` in the order in which roles name them."""
    costs, step = kept_costs(*here.key), evaluator(*here.key)
    firing, names = step.host(), list(dict.fromkeys(home.site.pool.name for home in homes.values()))
    spots, moves = [Spot(FREE)] * len(step.roles), [NO_SECONDS] * len(step.roles)
    for number, role in enumerate(step.roles):
        assert step.places(role) == tuple(at for at, op in enumerate(here.graph.ops) if op.role == role)
        if role in homes:
            cost = homes[role].cost
            spots[number] = step.spot(cost, first + names.index(homes[role].site.pool.name))
            moves[number] = step.moves(cost)
        seconds = step.of_role(homes[role].cost) if role in homes else step.of_least(role, least[role])
        for at, each in seconds:
            firing[at] = each
    synced = [hand_over(costs, edge, homes) for edge in step.edges]
    return step.seconds(step.in_step(firing, spots), spots, moves, synced)


@settings(max_examples=100, deadline=None)
@given(plans())
def test_a_step_of_a_plan(plan: tuple[Case, tuple[Pool, ...]]) -> None:
    here, pools = plan
    costs = kept_costs(*here.key)
    homes = placed_costs(costs, pools)
    seconds = steady_seconds(costs, homes)
    assert by_arrays(here, homes, {}) == seconds == by_arrays(here, homes, {}, first=7)


@settings(max_examples=100, deadline=None)
@given(plans(), st.data())
def test_a_bound_with_free_roles(plan: tuple[Case, tuple[Pool, ...]], data: st.DataObject) -> None:
    here, pools = plan
    costs = kept_costs(*here.key)
    homes = placed_costs(costs, pools)
    free = data.draw(st.sets(st.sampled_from(sorted(homes)), max_size=len(homes)))
    seconds = st.floats(0.0, 1e4, allow_nan=False)
    least = {role: {op.id: data.draw(seconds) for op in costs.ops_of(role)} for role in sorted(free)}
    placed = {role: home for role, home in homes.items() if role not in free}
    assert by_arrays(here, placed, least) == steady_seconds(costs, placed, least)


def test_pools_and_free_roles_are_told_apart() -> None:
    """Ops of one pool follow one another; of a free role its own do, and hold nobody else up."""
    step, graph = evaluator("ppo", "4xH100-80G"), kept_costs("ppo", "4xH100-80G").graph
    ones = [1.0 if needs_devices(graph.role(op.role)) else 0.0 for op in graph.ops]
    still, nothing = [NO_SECONDS] * len(step.roles), [NO_SECONDS] * len(step.edges)

    def seconds(spots: list[Spot]) -> float:
        return step.seconds(ones, spots, still, nothing)

    one = seconds([Spot(0)] * len(step.roles))
    several = seconds([Spot(number) for number in range(len(step.roles))])
    firings = {op.id: op.firings for op in graph.ops}
    assert one == sum(each * firings[op.id] for each, op in zip(ones, graph.ops, strict=True))
    assert seconds([Spot(FREE)] * len(step.roles)) == several < one


def test_a_move_stands_at_each_visit() -> None:
    """A trainer that leaves comes back for its log-probs and for its updates, with others in between."""
    step = evaluator("ppo", "4xH100-80G")
    trainer = step.roles.index("actor_train")
    nothing, idle = [NO_SECONDS] * len(step.edges), [0.0] * len(step.ops)
    moves = [(1.0, 0.0) if at == trainer else NO_SECONDS for at in range(len(step.roles))]
    stays = [Spot(0)] * len(step.roles)
    leaves = [Spot(0, leaves=at == trainer) for at in range(len(step.roles))]
    alone = [Spot(at, leaves=at == trainer) for at in range(len(step.roles))]
    assert step.seconds(idle, stays, moves, nothing) == 0.0
    assert step.seconds(idle, alone, moves, nothing) == 0.0
    assert step.seconds(idle, leaves, moves, nothing) == 2.0
