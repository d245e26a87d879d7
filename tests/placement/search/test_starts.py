"""Where a search starts: the ways that other systems publish, and what local moves make of them."""

from __future__ import annotations

from functools import lru_cache

import pytest
from msgspec.structs import replace

from benchmarks.searching import peers
from benchmarks.searching.presets import Given, given
from flowrl.compiler.lower.cluster import lower_cluster
from flowrl.machine.cluster import NodeGroup
from flowrl.placement.choices import Choices
from flowrl.placement.cost.role import RoleCosts
from flowrl.placement.cost.workload import Workload
from flowrl.placement.request import Mode, PlacementRequest
from flowrl.placement.search import search
from flowrl.placement.search.clock import Clock
from flowrl.placement.search.leaf import USUAL_ROLES, Leaves
from flowrl.placement.search.published import published
from flowrl.placement.search.sizes import sizes_of
from flowrl.placement.search.stays import RoleStays
from flowrl.placement.search.ways import Ways
from tests.placement.plans import case

SAME = 1e-9


@lru_cache
def safe_rlhf(gpus: int) -> Given:
    return given("safe_rlhf", "7B", gpus)


@pytest.mark.parametrize("gpus", [8, 16])
def test_every_placement_that_peers_document_is_a_start(gpus: int) -> None:
    here = safe_rlhf(gpus)
    starts = {
        frozenset((part.roles, size) for part, size in zip(parts, sizes, strict=True))
        for parts, sizes in published(Ways(here.graph, here.cluster, here.request))
    }
    for peer, pools in peers.placements(here):
        assert frozenset((pool.roles, pool.gpus) for pool in pools) in starts, peer


def test_seven_roles_are_placed_no_worse_than_by_any_peer() -> None:
    here = safe_rlhf(16)
    ours = search(here.graph, here.cluster, here.request, here.shapes).best
    assert ours.usable
    different = {
        tuple((pool.roles, pool.gpus) for pool in pools): (peer, pools) for peer, pools in peers.placements(here)
    }
    for peer, pools in different.values():
        request = replace(here.request, mode=Mode.POOLS, pools=pools)
        theirs = search(here.graph, here.cluster, request, here.shapes).best
        assert not theirs.usable or ours.seconds <= theirs.seconds * (1 + SAME), peer


@pytest.mark.parametrize("mode", [Mode.COLOCATED, Mode.DISAGGREGATED])
def test_a_mode_has_no_other_starts(mode: Mode) -> None:
    here = safe_rlhf(8)
    assert published(Ways(here.graph, here.cluster, PlacementRequest(mode=mode))) == []


def test_starts_keep_roles_apart() -> None:
    here = safe_rlhf(8)
    found = published(Ways(here.graph, here.cluster, PlacementRequest(apart=(("reward", "cost"),))))
    assert found
    assert not any({"reward", "cost"} <= set(part.roles) for parts, _ in found for part in parts)


def test_a_node_of_many_devices_has_few_sizes() -> None:
    group = lower_cluster("8xH100-80G").groups[0]

    def sizes(nodes: int, each: int) -> tuple[int, ...]:
        return sizes_of(NodeGroup(**{**_fields(group), "nodes": nodes, "devices_per_node": each}))

    assert sizes(2, 8) == tuple(range(1, 17))
    assert sizes(4, 8) == (*range(1, 8), 8, 16, 24, *range(25, 32), 32)
    assert len(sizes(1, 128)) < 40
    assert set(range(8, 129, 8)) <= set(sizes(1, 128))


def _fields(group: NodeGroup) -> dict[str, object]:
    return {name: getattr(group, name) for name in group.__struct_fields__}


def test_many_roles_are_looked_at_less() -> None:
    here = case("grpo with a reward model", "4xH100-80G")
    costs = RoleCosts(Workload(here.graph, here.shapes, here.request), here.cluster)
    leaves = Leaves(Clock(costs), RoleStays(costs, Choices(costs), {}))
    assert len(leaves.clock.roles) <= USUAL_ROLES
    assert leaves.looks(1000) == 1000
    leaves.clock.roles = tuple(f"role{at}" for at in range(4 * USUAL_ROLES))
    assert leaves.looks(1000) == 250
    assert leaves.looks(10) == 8 * USUAL_ROLES
