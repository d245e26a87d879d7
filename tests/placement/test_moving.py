"""What moves when a role gets other devices or another layout: against a count of elements, and by hand."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from itertools import product

import pytest
from msgspec.structs import replace as with_fields

from flowrl.machine.cluster import Cluster
from flowrl.machine.models import CARDS
from flowrl.machine.shape import ModelShape
from flowrl.placement.cost.ledger import evaluate
from flowrl.placement.cost.placed import Placed
from flowrl.placement.memory.training import resident_lines
from flowrl.placement.sync.cuts import cut_of
from flowrl.placement.sync.moving import (
    by_checkpoint,
    by_device,
    from_files,
    known,
    moved,
    shared_devices,
    state_pairs,
)
from flowrl.placement.sync.overlap import held
from flowrl.placement.sync.states import MASTER, MOMENTS, WEIGHTS, State, states_of
from flowrl.placement.sync.tensors import Tensors, tensors_of
from flowrl.plan.plan import LedgerLine
from tests.placement.shard_elements import Element, chunk, elements
from tests.placement.test_sync_overlap import tiny_shape
from tests.placement.trainers import trainer

TURNS = 90


# -- a second way to say who holds which element of an optimizer ------------------------------------------------------


def sharded(placed: Placed, state: State, tensors: Tensors) -> list[set[Element]]:
    """What each rank holds of one class: the weights as each backend slices them; of Megatron's optimizer what ranks
    with the same weights share out by rows, or by whole experts where there are enough."""
    ranks = len(placed.pool.devices)
    layout = placed.layout
    cut = cut_of(placed)
    if placed.backend == "deepspeed" and state.what != WEIGHTS:
        cut = replace(cut, shard=layout.dp)
    slices = [elements(cut, rank, tensors) for rank in range(ranks)]
    if placed.backend != "megatron" or state.what == WEIGHTS:
        return slices
    size = cut.ranks // cut.pp
    ways = layout.tp if not tensors.rule.experts or layout.ep * layout.tp <= size else 1
    return [share(slices, rank, size, tensors, ways, layout.ep) for rank in range(ranks)]


def share(slices: list[set[Element]], rank: int, size: int, tensors: Tensors, ways: int, ep: int) -> set[Element]:
    """Of the data-parallel ranks of one stage that hold the same, each its part."""
    first = rank // size * size
    peers = [each for each in range(first, first + size) if each % ways == rank % ways]
    group = [each for each in peers if slices[each] == slices[rank]]
    at = group.index(rank)
    mine = slices[rank]
    if tensors.rule.experts and ep > 1 and len(group) * ep <= tensors.experts:
        each = -(-tensors.experts // (ep * len(group)))
        experts = sorted({element[3] for element in mine})
        start = experts[0] + at * each if experts else 0
        return {element for element in mine if start <= element[3] < start + each}
    rows = chunk(sorted({element[4] for element in mine}), len(group), at)
    return {element for element in mine if element[4] in rows}


def counted(old: Placed, new: Placed, before: State, after: State, shared: frozenset[str]) -> dict[str, Counter[str]]:
    """Elements by the new device and by link: on it already, on another of its node, elsewhere."""
    found: dict[str, Counter[str]] = {"local": Counter(), "link": Counter(), "network": Counter()}
    here = [known(device, shared) for device in old.pool.devices]
    classes = {each.name: each for each in all_tensors(old, before)}
    for tensors in classes.values():
        have, want = sharded(old, before, tensors), sharded(new, after, tensors)
        for rank, need in enumerate(want):
            device = new.pool.devices[rank]
            node = device.rpartition("/")[0]
            for element in need:
                holders = [here[each] for each, own in enumerate(have) if element in own]
                assert holders
                nodes = {holder.rpartition("/")[0] for holder in holders}
                link = "local" if device in holders else "link" if node in nodes else "network"
                found[link][device] += 1
    return found


def all_tensors(placed: Placed, state: State) -> tuple[Tensors, ...]:
    assert not placed.adapter
    assert state.what in (WEIGHTS, MASTER, MOMENTS)
    return tensors_of(placed.model)


def drawn(pick: random.Random, shape: ModelShape, backend: str, trains: bool) -> Placed:
    """A trainer in a random layout, on random devices of a few nodes."""
    dp = pick.choice((1, 2, 3, 4))
    tp = pick.choice((1, 2)) if backend != "deepspeed" else 1
    pp = pick.choice([each for each in (1, 2, 3) if each <= shape.layers]) if backend == "megatron" else 1
    ways = [each for each in (1, 2, 4) if shape.experts and shape.experts % each == 0]
    ways = [each for each in ways if dp % each == 0 or (backend == "megatron" and each > dp and dp * tp % each == 0)]
    ep = pick.choice(ways) if ways and backend != "deepspeed" else 1
    made = trainer(shape, backend, dp=dp, tp=tp, pp=pp, ep=ep, trains=trains)
    return on_devices(made, pick.sample(DEVICES, dp * tp * pp) if pick.random() < 0.3 else DEVICES[: dp * tp * pp])


NODE = 4
DEVICES = [f"node{node}/{place}" for node, place in product(range(8), range(NODE))]


def on_devices(placed: Placed, devices: list[str]) -> Placed:
    group = with_fields(placed.group, nodes=8, devices_per_node=NODE)
    return replace(placed, pool=with_fields(placed.pool, devices=tuple(devices)), group=group)


@pytest.mark.parametrize("backend", ["fsdp", "deepspeed", "megatron"])
def test_bytes_are_a_count_of_elements(backend: str) -> None:
    """Random models, layouts and devices, some of which are not in the new cluster."""
    pick = random.Random(backend)
    seen: Counter[str] = Counter()
    for _ in range(TURNS // 3):
        shape = tiny_shape(pick)
        trains = pick.random() < 0.8
        old, new = drawn(pick, shape, backend, trains), drawn(pick, shape, backend, trains)
        shared = frozenset(DEVICES[: pick.choice((8, 16, 32))])
        for before, after in state_pairs(old, new):
            found, right = moved(old, new, before, after, shared), counted(old, new, before, after, shared)
            told = f"{before.what}: {old.layout} on {old.pool.devices} to {new.layout} on {new.pool.devices}, {shape}"
            assert found.local == sum(right["local"].values()), told
            assert found.link_by == right["link"], told
            assert found.network_by == right["network"], told
            assert sum(found.link_from.values()) == found.link, told
            assert sum(found.network_from.values()) == found.network, told
            seen.update({"local": found.local, "link": found.link, "network": found.network})
            seen[before.what] += 1
    assert all(seen[each] for each in ("local", "link", "network", WEIGHTS, MOMENTS, MASTER))


def test_two_ranks_become_four() -> None:
    """FSDP2 on two GPUs to four of the same node: a quarter lies where it is needed, the rest goes over links, 4 bytes
    of master weights and 8 of moments an element."""
    shape = CARDS["Qwen/Qwen2.5-0.5B"]
    old = on_devices(trainer(shape, dp=2), DEVICES[:2])
    new = on_devices(trainer(shape, dp=4), DEVICES[:4])
    lines = values(by_device(old, new, frozenset(DEVICES)))
    assert set(lines) == {
        "master weights in place",
        "master weights over links",
        "optimizer states in place",
        "optimizer states over links",
        "moving actor_train",
    }
    for what, width in (("master weights", 4), ("optimizer states", 8)):
        assert lines[f"{what} in place"] == pytest.approx(width * shape.parameters / 4, rel=1e-3)
        assert lines[f"{what} over links"] == pytest.approx(width * shape.parameters * 3 / 4, rel=1e-3)
    # rank 1 sends two quarters, the most of any device: over 75 % of NVLink's 450 GB/s
    assert lines["moving actor_train"] == pytest.approx(12 * shape.parameters / 2 / (0.75 * 450e9), rel=1e-2)


def values(lines: tuple[LedgerLine, ...]) -> dict[str, float]:
    return {each.what: each.value for each in lines}


def test_nothing_moves_where_nothing_changes() -> None:
    placed = on_devices(trainer(CARDS["Qwen/Qwen2.5-0.5B"], "megatron", dp=2, tp=2, pp=2), DEVICES[:8])
    lines = values(by_device(placed, placed, frozenset(DEVICES)))
    assert {what for what in lines if not what.endswith("in place")} == {"moving actor_train"}
    assert lines["moving actor_train"] == 0


def test_a_checkpoint_holds_everything_once() -> None:
    """Written once, read by each that needs it; the slower of disk and network, over whole nodes."""
    shape = CARDS["Qwen/Qwen2.5-0.5B"]
    old = on_devices(trainer(shape, "deepspeed", dp=8, zero_stage=1), DEVICES[:8])
    new = on_devices(trainer(shape, "deepspeed", dp=4, zero_stage=1), DEVICES[:4])
    lines = values(by_checkpoint(old, new))
    parameters = shape.parameters
    assert lines["weights written"] == 2 * parameters
    assert lines["master weights written"] == 4 * parameters
    assert lines["optimizer states written"] == 8 * parameters
    assert lines["weights read"] == 4 * 2 * parameters  # stage 1 has whole weights on each rank
    assert lines["optimizer states read"] == 8 * parameters
    disk = old.group.disk_bytes_per_second * old.profile.fixed.disk
    assert lines["writing actor_train"] == pytest.approx(14 * parameters / 2 / disk, rel=1e-3)  # two nodes write
    assert lines["reading actor_train"] == pytest.approx((8 + 12) * parameters / disk, rel=1e-3)  # one reads


def test_a_slow_network_holds_up_a_checkpoint() -> None:
    shape = CARDS["Qwen/Qwen2.5-0.5B"]
    placed = on_devices(trainer(shape, dp=4), DEVICES[:4])
    group = with_fields(placed.group, network_bytes_per_second=1e6)
    slow = replace(placed, group=group)
    rate = 1e6 * slow.profile.sync_rates("shards").network
    assert values(by_checkpoint(slow, slow))["writing actor_train"] == pytest.approx(
        12 * shape.parameters / 4 / rate, rel=1e-3
    )


def test_a_scorer_reads_its_weights() -> None:
    shape = CARDS["Qwen/Qwen2.5-0.5B"]
    lines = values(from_files(on_devices(trainer(shape, dp=4, trains=False), DEVICES[:4])))
    assert lines["weights read"] == 2 * shape.parameters
    assert set(lines) == {"weights read", "reading actor_train"}


@pytest.mark.parametrize("engine", [{}, {"optimizer": "sgd"}, {"optimizer": "adamw_8bit"}, {"adapter": 10_000_000}])
@pytest.mark.parametrize(("backend", "tp"), [("fsdp", 1), ("fsdp", 2), ("deepspeed", 1), ("megatron", 2)])
def test_states_are_what_memory_counts(backend: str, tp: int, engine: dict[str, object]) -> None:
    """All ranks together, without the gradients that Megatron keeps, to a thousandth: norms are on each tp rank."""
    placed = trainer(CARDS["Qwen/Qwen2.5-7B"], backend, dp=4, tp=tp, **engine)  # type: ignore[arg-type]
    counts = {
        state.what: sum(sum(held(part.tensors, part.cut)) for part in state.parts) * state.width.value
        for state in states_of(placed)
    }
    kept = {
        line.what.removeprefix("adapter "): line.value
        for line in resident_lines(placed)
        if not line.what.endswith("gradients")
    }
    if backend == "megatron" and "adapter" in engine:
        kept["weights"] -= 2 * 10_000_000 / 2  # a copy of the adapter in compute, made of its master weights
        counts[MASTER] /= 2  # adapters are not cut by tp here, and memory cuts them
        counts[MOMENTS] /= 2
    if backend == "fsdp" and tp == 2 and "adapter" in engine:
        counts[MASTER] /= 2
        counts[MOMENTS] /= 2
    assert counts.keys() == kept.keys()
    for what, whole in counts.items():
        assert whole / (4 * tp) == pytest.approx(kept[what], rel=2e-3), what


def test_devices_are_shared_by_name_and_kind() -> None:
    def cluster(nodes: int, each: int, kind: str = "H100-80G") -> Cluster:
        group = trainer(CARDS["Qwen/Qwen2.5-0.5B"]).group
        device = with_fields(group.device, name=kind)
        return Cluster(name="c", groups=(with_fields(group, nodes=nodes, devices_per_node=each, device=device),))

    assert len(shared_devices(cluster(8, 8), cluster(6, 8))) == 48
    assert shared_devices(cluster(2, 4), cluster(1, 8)) == {f"node0/{place}" for place in range(4)}
    assert not shared_devices(cluster(2, 8), cluster(2, 8, "H20"))


def test_lines_are_their_formulas() -> None:
    old = on_devices(trainer(CARDS["Qwen/Qwen2.5-7B"], "megatron", dp=2, tp=4, pp=2), DEVICES[:16])
    new = on_devices(trainer(CARDS["Qwen/Qwen2.5-7B"], "megatron", dp=4, tp=2), DEVICES[8:16])
    for each in (*by_device(old, new, frozenset(DEVICES)), *by_checkpoint(old, new)):
        assert evaluate(each.formula, each.inputs) == pytest.approx(each.value, abs=1)
