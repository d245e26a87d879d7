"""Parts of the search: sizes of pools, bounds that no placement is under, wishes of the flow, names of pools."""

from __future__ import annotations

import pytest

from flowrl.compiler.lower.cluster import lower_cluster
from flowrl.placement.choices import Choices
from flowrl.placement.cost.role import RoleCosts
from flowrl.placement.cost.workload import Workload
from flowrl.placement.search import search
from flowrl.placement.search.branch import Bound, Box, Branch, Ground, Seat
from flowrl.placement.search.climb import Climb
from flowrl.placement.search.objective import WORST, objective_of
from flowrl.placement.search.settle import Settler
from flowrl.placement.search.sizes import cluster_sizes, shape_of, sizes_of
from flowrl.placement.search.ways import Part, Ways, group_size
from tests.placement.flows import GRPO, PPO, with_placement
from tests.placement.plans import Case, case
from tests.placement.told import told_text


def ground_of(here: Case) -> Ground:
    costs = RoleCosts(Workload(here.graph, here.shapes, here.request), here.cluster)
    ways, objective = Ways(here.graph, here.cluster, here.request), objective_of(here.request, here.cluster)
    settler = Settler(costs, Choices(costs), ways, objective)
    return Ground(
        ways=ways,
        room={group.name: group_size(group) for group in here.cluster.groups},
        sizes=cluster_sizes(here.cluster),
        order=settler.in_order(),
        clock=settler.leaves.clock,
        floors=settler.floors,
        objective=objective,
        count=settler.leaves.count,
    )


@pytest.mark.parametrize(
    "cluster", ["1x4xH100-80G", "2x8xH100-80G", "3x8xH100-80G", "128x8xH100-80G", "2048x8xH100-80G"]
)
def test_what_a_size_leaves_is_a_size(cluster: str) -> None:
    """So a last stage of one device has its 15 (or 1,023) beside it; up to 16 devices every size is tried."""
    group = lower_cluster(cluster).groups[0]
    sizes, whole = sizes_of(group), group_size(group)
    assert sizes == tuple(sorted(set(sizes)))
    assert all(whole - size in sizes for size in sizes if size < whole)
    assert {1, whole - 1, whole} <= set(sizes)
    assert len(sizes) == whole if whole <= 16 else len(sizes) < 80


def test_a_shape_counts_devices_by_node() -> None:
    assert shape_of("nodes", ("node0/0", "node0/1", "node3/4")) == ("nodes", (2, 1))


@pytest.mark.parametrize("flow", ["grpo with a reward model", "ppo of Megatron", "two that talk"])
@pytest.mark.parametrize("cluster", ["8xA100-40G", "3x4xL40S"])
def test_no_placement_is_better_than_the_bound_of_its_box(flow: str, cluster: str) -> None:
    """Every candidate, in boxes of its own sizes and of all, and with the bound of the roles that are placed first."""
    here = case(flow, cluster)
    found = search(here.graph, here.cluster, here.request, here.shapes)
    ground = ground_of(here)
    branch = Branch(ground, lambda seats, places: None, lambda: WORST)
    usable = [candidate for candidate in found.tried if candidate.usable]
    assert usable
    for candidate in usable:
        seats = [Seat(each.roles, each.group.name, ground.sizes[each.group.name]) for each in candidate.option.pools]
        places = [seat.sizes.index(len(d.devices)) for seat, d in zip(seats, candidate.option.pools, strict=True)]
        for low, high in (((0,) * len(seats), [len(s.sizes) - 1 for s in seats]), (places, places)):
            narrowed = branch.narrowed(Box(tuple(seats), tuple(low), tuple(high)))
            assert narrowed is not None
            assert narrowed[1] <= candidate.seconds * (1 + 1e-9)
        part = Box(tuple(seats[:1]), (0,), (places[0],), tuple(role for seat in seats[1:] for role in seat.roles))
        assert Bound(ground, part).least((places[0],)) <= candidate.seconds * (1 + 1e-9)


def test_a_climb_gives_ways_with_room() -> None:
    ground = ground_of(case("ppo of Megatron", "3x4xL40S"))
    (group,) = ground.sizes
    start = [Seat((role,), group, ground.sizes[group]) for role in ground.ways.roles]
    ways = Climb(ground).ways([start])
    assert ways
    for score, seats, places in ways:
        assert sum(seat.sizes[place] for seat, place in zip(seats, places, strict=True)) <= 12
        assert sorted(role for seat in seats for role in seat.roles) == sorted(ground.ways.roles)
        assert score[0] < float("inf")


def test_pools_have_the_names_that_the_runtime_and_people_know() -> None:
    told = told_text(PPO)
    ways = Ways(told.graph, told.cluster, told.request)

    def names(*parts: tuple[str, ...]) -> list[str]:
        return ways.names([Part(part, "nodes") for part in parts])

    assert names(("actor_infer", "actor_train", "critic", "reference")) == ["all"]
    assert names(("actor_infer",), ("actor_train", "critic", "reference")) == ["rollout", "train"]
    assert names(("actor_infer", "reference"), ("actor_train",), ("critic",)) == ["actor_infer", "train", "critic"]


@pytest.mark.parametrize(("role", "pool"), [("reference", "rollout"), ("reference", "train"), ("critic", "train")])
def test_a_pinned_role_is_in_its_pool(role: str, pool: str) -> None:
    told = told_text(with_placement(PPO, f"{{pin: {{{role}: {pool}}}}}"))
    homes = {entry.role: each.name for each in told.placement.pools for entry in each.roles}
    assert homes[role] == pool
    mates = {"actor_infer"} if pool == "rollout" else {"actor_train", "critic"}
    assert pool in {homes[mate] for mate in mates}


def test_roles_apart_are_apart_and_layouts_of_explicit_pools_are_searched_unless_written() -> None:
    told = told_text(with_placement(PPO, "{apart: [[critic, reference], [actor_train, actor_infer]]}"))
    homes = {entry.role: each.name for each in told.placement.pools for entry in each.roles}
    assert homes["critic"] != homes["reference"]
    assert homes["actor_train"] != homes["actor_infer"]
    section = "{pools: {a: {gpus: 16, roles: [actor_infer, actor_train], layouts: {actor_infer: {tp: 4}}}}}"
    told = told_text(with_placement(GRPO, section))
    (pool,) = (each for each in told.placement.pools if each.devices)
    assert {entry.role: entry.layout.tp for entry in pool.roles}["actor_infer"] == 4
    assert {entry.role for entry in pool.roles} == {"actor_infer", "actor_train", "reward"}


def test_a_plan_says_whether_it_is_proven() -> None:
    told = told_text(GRPO)
    assert told.placement.search.exhaustive
    assert told.placement.search.gap == 0
    assert "proven best of" in told.placement.decisions[0].text
