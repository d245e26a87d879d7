"""The judges of benchmarks/search.py themselves: the oracle's seconds, bytes and counts beside the model's and hand
arithmetic, and the two independent cycle ratios beside each other."""

from __future__ import annotations

from random import Random

import pytest

from benchmarks.searching.blocks import homes, set_partitions
from benchmarks.searching.circles import circles
from benchmarks.searching.clock import whole_responses
from benchmarks.searching.instances import Menu, instance, shapes
from benchmarks.searching.optimum import checked
from benchmarks.searching.oracle import Oracle, allocated
from benchmarks.searching.ratios import Wait, by_circles, by_karp, waits
from flowrl.compiler.emit.program import emit
from flowrl.machine.shorthand import parse_cluster
from flowrl.placement.cost.placed import needs_devices
from flowrl.placement.cost.role import RoleCosts
from flowrl.placement.cost.workload import Workload
from flowrl.plan.plan import Layout, Pool, RolePlacement, StageRun

BELL = (1, 1, 2, 5, 15, 52, 203)


@pytest.mark.parametrize(("count", "ways"), list(enumerate(BELL)))
def test_set_partitions_are_as_many_as_bell_numbers(count: int, ways: int) -> None:
    found = list(set_partitions([f"r{place}" for place in range(count)]))
    assert len(set(found)) == len(found) == ways
    assert all(sum(map(len, parts)) == count for parts in found)


def test_every_size_of_every_pool_is_tried() -> None:
    """Two pools on groups of 2 and 1 devices: (1,1) on the first, and one on each group either way round."""
    found = set(homes(2, [("a", 2), ("b", 1)]))
    one, other = ("a", 1), ("b", 1)
    assert found == {(one, one), (one, other), (other, one), (("a", 2), other), (other, ("a", 2))}


def test_counted_and_enumerated_shapes_agree() -> None:
    for number in range(12):
        given = instance(3, number)
        groups = [(group.name, group.nodes * group.devices_per_node) for group in given.cluster.groups]
        ways = sum(1 for parts in set_partitions(given.roles) for _ in homes(len(parts), groups))
        assert ways == shapes(given)


def test_the_largest_pool_takes_whole_nodes_first() -> None:
    first, second, third = allocated(parse_cluster("3x4xH100-80G"), [("nodes", 1), ("nodes", 8), ("nodes", 2)])
    assert second == tuple(f"node{node}/{place}" for node in (0, 1) for place in range(4))
    assert (first, third) == (("node2/2",), ("node2/0", "node2/1"))


@pytest.mark.parametrize("number", range(6))
def test_the_oracle_times_and_weighs_as_the_model_does(number: int) -> None:
    """Random placements of random instances: `step_seconds` and `memory` are asked as well."""
    given = instance(2, number)
    costs = RoleCosts(Workload(given.graph, given.shapes, given.request), given.cluster)
    assert checked(Oracle(given, Menu(costs, given.name, given.options)), placements=6) == ()


def test_ratios_by_hand() -> None:
    """A lane of 3 and 4 seconds (7 a step) and a loop of 3, 4 and 10 seconds over 2 steps (17 / 2)."""
    lane = [Wait(0, 1, 3.0, 0), Wait(1, 0, 4.0, 1)]
    loop = [Wait(1, 2, 4.0, 0), Wait(2, 0, 10.0, 2)]
    assert by_karp(3, lane) == pytest.approx(7.0)
    assert by_karp(3, [*lane, *loop]) == pytest.approx(8.5)
    assert by_circles([*lane, *loop]) == (pytest.approx(8.5), 2)


@pytest.mark.parametrize("number", range(8))
def test_circles_that_are_kept_bind_whatever_the_seconds(number: int) -> None:
    """The oracle's short list of circles beside Karp's ratio of all arcs, with random seconds."""
    given, draw = instance(4, number), Random(number)
    roles = [role.name for role in given.graph.roles]
    parts = draw.choice(list(set_partitions(given.roles)))
    away = tuple(RolePlacement(role=r, layout=Layout()) for r in roles if not needs_devices(given.graph.role(r)))
    pools = [
        Pool(
            name=own[0], devices=(own[0],), device="", roles=tuple(RolePlacement(role=r, layout=Layout()) for r in own)
        )
        for own in parts
    ]
    host = Pool(name="host", devices=(), device="host", roles=away, slots=max(2, len(away)))
    program = emit(whole_responses(given.graph), [*pools, host], StageRun(steps=2))
    found = circles(program)
    by_part = {part: draw.choice((0.0, draw.random(), 5 * draw.random())) for part in found.parts}
    by_part |= {part: 0.0 for part in found.parts if part.kind in ("load", "cache", "offload")}
    seconds = {
        i.id: next(
            (by_part[p] for p in found.parts if (p.kind, p.role, p.what) == (i.kind, i.role, i.op or i.edge)), 0.0
        )
        for i in program.instructions
    }
    least = max(
        sum(c * by_part[p] for c, p in zip(row, found.parts, strict=True)) / tokens
        for row, tokens in zip(found.counts, found.tokens, strict=True)
    )
    assert least == pytest.approx(by_karp(*waits(program, seconds)), rel=1e-12)
