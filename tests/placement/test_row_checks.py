"""The arithmetic of rows and ranks against brute force: what messages name as the nearest legal sizes is legal, and
nothing nearer is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flowrl.compiler.lower.cluster import lower_cluster
from flowrl.compiler.lower.graph import lower_stage
from flowrl.compiler.passes.pipeline import run_passes
from flowrl.placement.checks.rows import even_ranks, idle_share, least_prompts, most_updates, ranks_text
from flowrl.placement.choices import Choices
from flowrl.placement.cost.role import RoleCosts
from flowrl.placement.cost.workload import Workload
from flowrl.placement.devices import broken_group
from flowrl.placement.request import PlacementRequest
from flowrl.placement.shapes import shapes_of
from flowrl.plan.plan import Layout
from flowrl.spec import loads
from tests.errors.test_bug_reports import text

small = st.integers(1, 24)


def is_legal(prompts: int, samples: int, updates: int, dp: int, whole: bool) -> bool:
    """Each of `updates` minibatches takes as many prompts, and deals at least one unit to every rank."""
    if prompts % updates:
        return False
    units = prompts // updates * (1 if whole else samples)
    dealt = [0] * dp
    for unit in range(units):
        dealt[unit % dp] += 1
    return min(dealt) > 0


@given(small, small, small, st.booleans())
def test_least_prompts_are_the_first_that_are_legal(dp: int, samples: int, updates: int, whole: bool) -> None:
    found = least_prompts(dp, samples, updates, whole_groups=whole)
    legal = (prompts for prompts in range(1, 24 * 24 + 1) if is_legal(prompts, samples, updates, dp, whole))
    assert found == next(legal)
    assert all(is_legal(found + more * updates, samples, updates, dp, whole) for more in range(3))


@given(small, st.integers(1, 64), small, st.booleans())
def test_most_updates_are_the_last_that_are_legal(dp: int, prompts: int, samples: int, whole: bool) -> None:
    legal = [updates for updates in range(1, prompts + 1) if is_legal(prompts, samples, updates, dp, whole)]
    assert most_updates(dp, prompts, samples, whole_groups=whole) == (max(legal) if legal else None)


@given(st.integers(1, 200), st.integers(1, 200))
def test_even_ranks_are_the_nearest_divisors(count: int, ranks: int) -> None:
    divisors = [each for each in range(1, count + 1) if count % each == 0]
    below = [each for each in divisors if each < ranks]
    above = [each for each in divisors if each > ranks]
    assert even_ranks(count, ranks) == (*below[-1:], *above[:1])


@given(st.integers(1, 200), st.integers(1, 64))
def test_idle_share_is_what_the_fullest_rank_leaves(count: int, ranks: int) -> None:
    dealt = [count // ranks + (rank < count % ranks) for rank in range(ranks)]
    idle = sum(max(dealt) - each for each in dealt) / (max(dealt) * ranks)
    assert abs(idle_share(count, ranks) - idle) < 1e-12


@given(st.integers(1, 4), st.integers(1, 6), st.integers(1, 6), st.data())
def test_groups_over_nodes_are_found(nodes: int, each: int, tp: int, data: st.DataObject) -> None:
    """Number the devices; a group of tp neighbours is whole where its first and last are of one node."""
    count = data.draw(st.integers(1, nodes * each))
    devices = [f"node{place // each}/{place % each}" for place in range(count)]
    groups = [(start, start + tp - 1) for start in range(0, count - tp + 1, tp)]
    broken = [f"{first} to {last}" for first, last in groups if first // each != last // each]
    assert broken_group(devices, tp) == (broken[0] if broken else None)


def test_auto_keeps_groups_within_a_node() -> None:
    """28 heads on nodes of six: tp 4 divides heads and devices, and its second group would be on two nodes."""
    flow = text(PLACEMENT="placement: colocated").replace("nodes: 1, gpus_per_node: 8", "nodes: 2, gpus_per_node: 6")
    graph, _ = run_passes(lower_stage(loads(flow), 0))
    cluster = lower_cluster("2x6xH100-80G")
    choices = Choices(RoleCosts(Workload(graph, shapes_of(graph, "."), PlacementRequest()), cluster))
    site = choices.costs.site_of(cluster.groups[0].name, 12)
    assert [layout.tp for layout in choices.menu("actor_infer", site).layouts] == [1, 2]


def test_ranks_are_told_with_what_divides_them() -> None:
    assert ranks_text(Layout(dp=4)) == "4 devices"
    assert ranks_text(Layout(dp=2, tp=4)) == "8 devices / tp 4 = 2"
    assert ranks_text(Layout(dp=4, tp=2, pp=2)) == "16 devices / (tp 2 * pp 2) = 4"
