"""What is made for its numbers alone is what the ledger says, to the last bit; and sites that have no names yet."""

from __future__ import annotations

import math

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl.graph.graph import EdgeKind
from flowrl.placement.cost.ledger import Given, bytes_of, evaluate, line, numbers_only
from flowrl.placement.cost.placed import HOST, placed_roles
from flowrl.placement.cost.role import RoleCost, RoleCosts, Site
from flowrl.placement.cost.workload import Workload
from flowrl.placement.devices import allocate
from flowrl.placement.memory.pool import memory
from flowrl.placement.memory.role import RoleMemory
from flowrl.placement.memory.training import host_lines
from flowrl.placement.sync.edge import sync_of
from flowrl.placement.time.ops import OpTime
from flowrl.plan.plan import LedgerLine, Pool, RolePlacement
from tests.placement.plans import Case, cases, kept_costs, plans


def seconds_of(lines: list[LedgerLine] | tuple[LedgerLine, ...]) -> float:
    total = 0.0
    for each in lines:
        total += each.value
    return total


@st.composite
def choices(draw: st.DrawFn) -> tuple[Case, RolePlacement, Site, tuple[RolePlacement, ...]]:
    """A role of a case in any layout on a block of devices, in any way to work, beside another or alone."""
    here = draw(cases)
    costs, group = kept_costs(*here.key), here.cluster.groups[0]
    site = costs.site_of(group.name, draw(st.integers(1, here.cluster.device_count)))
    role = here.graph.role(draw(st.sampled_from(here.roles)))
    entry = draw(st.sampled_from(here.choices(role.name, site)))
    ways = ("none", "selective", "full") if role.trainable else ("none",)
    changed = msgspec.structs.replace(
        entry,
        recompute=draw(st.sampled_from(ways)),
        micro_batch_tokens=draw(st.sampled_from((None, 512, 4096, 40_000))) if role.backend != "vllm" else None,
    )
    mates = [each for each in here.roles if each != role.name]
    beside = draw(st.lists(st.sampled_from(mates), max_size=2, unique=True)) if mates else []
    others = (RolePlacement(role=each, layout=entry.layout, offloaded=draw(st.booleans())) for each in beside)
    return here, changed, site, tuple(others)


@settings(max_examples=400, deadline=None)
@given(choices())
def test_numbers_of_a_role_are_those_of_its_lines(
    drawn: tuple[Case, RolePlacement, Site, tuple[RolePlacement, ...]],
) -> None:
    """All bytes, stage by stage, and all seconds: of whole lines, made for this one placement on named devices."""
    here, entry, site, beside = drawn
    cost = kept_costs(*here.key).role_cost(entry, site, beside)
    pool = here.pool("alone", site.pool.devices, (entry, *beside))
    work = Workload(here.graph, here.shapes, here.request)
    placed = placed_roles(here.graph, pool, here.shapes, here.cluster, here.request)[0]
    memory, times = RoleMemory(work, placed, site.limit_bytes), OpTime(work, (pool,), here.cluster)
    stages, ops = range(placed.layout.pp), [op for op in here.graph.ops if op.role == entry.role]
    assert (cost.pp, cost.offloaded, cost.wakes, cost.staged) == (
        memory.pp,
        entry.offloaded,
        memory.wakes,
        memory.staged,
    )
    for stage in stages:
        assert cost.resident(stage) == bytes_of(memory.resident(stage))
        assert cost.left(stage) == bytes_of(memory.left(stage))
        assert cost.grown(stage) == bytes_of(memory.grown(stage))
        load = memory.load(stage)
        assert cost.load(stage) == (None if load is None else bytes_of(load))
        for op in ops:
            lines = memory.at_work(op, stage)
            assert all(each.inputs for each in lines)
            assert cost.at_work(op, stage) == bytes_of(lines)
    start = memory.start()
    assert cost.start() == (None if start is None else (bytes_of(start[0]), start[1]))
    assert cost.off_device_bytes == bytes_of(memory.off_device())
    if cost.has_model:
        assert cost.host_bytes == bytes_of(host_lines(placed))
        assert cost.move_seconds == seconds_of(times.move_state(placed))
    for op in ops:
        assert cost.seconds[op.id] == seconds_of(times.on_devices(placed, op))
    on = cost.on(pool)
    assert (on.count, on.linked, on.offloaded) == (placed.count, placed.linked, placed.offloaded)


@settings(max_examples=60, deadline=None)
@given(choices(), st.data())
def test_hand_overs_are_those_of_named_devices(
    drawn: tuple[Case, RolePlacement, Site, tuple[RolePlacement, ...]], data: st.DataObject
) -> None:
    here, _, there, _ = drawn
    costs, group = kept_costs(*here.key), here.cluster.groups[0].name
    ends: list[tuple[RolePlacement, Site]] = []
    edge = next(each for each in here.graph.edges if each.kind is EdgeKind.WEIGHTS)
    for role, site in ((edge.source.split(".")[0], there), (edge.target.split(".")[0], costs.site_of(group, 2))):
        ends.append((data.draw(st.sampled_from(here.choices(role, site))), site))
    (giver, here_site), (taker, there_site) = ends
    pair = [(costs.role_cost(entry, site), site) for entry, site in ends]
    found = costs.hand_over(edge, pair[0], pair[1])
    placed = [
        placed_roles(here.graph, here.pool("p", site.pool.devices, (entry,)), here.shapes, here.cluster, here.request)[
            0
        ]
        for entry, site in ((giver, here_site), (taker, there_site))
    ]
    sync = sync_of(placed[0], placed[1], edge.transport)
    assert found == (seconds_of(sync.send), seconds_of(sync.receive))


@settings(max_examples=200, deadline=None)
@given(cases, st.data())
def test_a_block_of_devices_is_the_pool_that_is_allocated_first(here: Case, data: st.DataObject) -> None:
    costs, group = RoleCosts(Workload(here.graph, here.shapes, here.request), here.cluster), here.cluster.groups[0]
    count = data.draw(st.integers(1, here.cluster.device_count))
    names = allocate(here.cluster, [(group.name, count)])[0]
    block, pool = costs.site_of(group.name, count), costs.site(here.pool("first", names))
    assert block.key == pool.key
    assert (block.count, block.linked, block.even, block.limit_bytes) == (
        pool.count,
        pool.linked,
        pool.even,
        pool.limit_bytes,
    )
    assert block.pool.devices == names
    first = data.draw(st.integers(0, here.cluster.device_count - count))
    each = group.devices_per_node
    named = tuple(f"node{at // each}/{at % each}" for at in range(first, first + count))
    later, same = costs.site_of(group.name, count, first), costs.site(here.pool("later", named))
    assert (later.key, later.even, later.pool.devices) == (same.key, same.even, named)
    assert costs.site_of(group.name, count) is block


def test_a_site_has_no_names_until_it_is_asked_for_them() -> None:
    costs = kept_costs("ppo", "2x8xH100-80G")
    site = costs.site_of(costs.cluster.groups[0].name, 12)
    assert site.count == 12
    assert site.linked == 4
    assert site.pool == Pool(name="", devices=site.pool.devices, device="H100-80G", roles=())
    assert site.pool.devices[7:9] == ("node0/7", "node1/0")


NAMES: tuple[str, ...] = ("a", "b", "cc")
numbers = st.one_of(st.integers(-(10**12), 10**12), st.floats(-1e9, 1e9))
leaves = st.one_of(
    st.sampled_from(NAMES), st.integers(0, 99).map(str), st.floats(0, 99).map(lambda value: f"{value:.3f}")
)
formulas = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("+-*"), inner).map(lambda each: f"({each[0]} {each[1]} {each[2]})"),
        st.tuples(inner, inner).map(lambda each: f"max({each[0]}, min({each[1]}, 7), 2)"),
        st.tuples(inner, st.integers(1, 9)).map(lambda each: f"{each[0]}/{each[1]}"),
        inner.map(lambda each: f"ceil({each})*1"),
    ),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(formulas, st.tuples(numbers, numbers, numbers), st.sampled_from(("bytes", "seconds")))
def test_a_formula_is_pythons_own_arithmetic(formula: str, values: tuple[float, float, float], unit: str) -> None:
    """With inputs or without them a line has the same value: that of the text."""
    known = dict(zip(NAMES, values, strict=True))
    inputs = {name: Given(value, f"from {name}") for name, value in known.items()}
    wanted = eval(formula, {"__builtins__": {}, "max": max, "min": min, "ceil": math.ceil}, known)  # noqa: S307
    whole = line("what", "role", unit, formula, inputs)
    with numbers_only():
        bare = line("what", "role", unit, formula, inputs)
    assert evaluate(formula, known) == wanted
    assert whole.value == bare.value == (math.ceil(wanted - 1e-6) if unit == "bytes" else wanted)
    assert (bare.inputs, bare.origins, bare.formula) == ({}, {}, whole.formula)
    assert whole.inputs == {name: known[name] for name in whole.inputs}
    assert whole.origins == {name: f"from {name}" for name in whole.inputs}


@settings(max_examples=60, deadline=None)
@given(plans())
def test_pools_and_hosts_by_numbers(plan: tuple[Case, tuple[Pool, ...]]) -> None:
    """The fullest device, the first phase that does not fit, and the memory of hosts, by the ledger of the plan."""
    here, pools = plan
    costs = kept_costs(*here.key)
    ledger = memory(here.graph, pools, here.shapes, here.cluster, request=here.request)
    placed: list[tuple[Pool, tuple[RoleCost, ...]]] = []
    for pool in (each for each in pools if each.devices):
        site = costs.site(pool, pools)
        placed.append((pool, costs.pool_costs(pool.roles, site)))
        own = [each for each in ledger if each.pool == pool.name]
        assert costs.fullest(placed[-1][1], site) == max(each.peak_bytes / each.limit_bytes for each in own)
        short = next((each for each in own if each.peak_bytes > each.limit_bytes), None)
        found = costs.short(placed[-1][1], site)
        assert found == (None if short is None else msgspec.structs.replace(short, lines=()))
        assert costs.fits(placed[-1][1], site) == (short is None)
        for cost in placed[-1][1]:
            phases = list(costs.pool_phases((cost,), site))
            assert costs.fullest((cost,), site) == max(held / max(1, limit) for *_, held, limit in phases)
            assert costs.fits((cost,), site) == all(held <= limit for *_, held, limit in phases)
    hosts = tuple(msgspec.structs.replace(each, lines=()) for each in ledger if each.pool == HOST)
    assert costs.host_needs(placed) == hosts
