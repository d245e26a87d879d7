"""The seconds of a weights edge: ledger lines, ways and transports, adapters, hand-worked figures, published ones."""

from __future__ import annotations

import dataclasses
import time

import pytest
from msgspec.structs import replace

from flowrl.machine.models import CARDS
from flowrl.machine.profile import Profile
from flowrl.machine.sync import TRANSPORTS, default_transport, legal_transports
from flowrl.placement.cost.ledger import evaluate
from flowrl.placement.cost.placed import Placed, placed_roles
from flowrl.placement.sync.cuts import cut_of
from flowrl.placement.sync.edge import sync_links, sync_of
from flowrl.plan.plan import Layout, Pool, RolePlacement
from tests.placement.flows import GRPO
from tests.placement.told import told_text

SHAPE = CARDS["Qwen/Qwen2.5-7B"]


def ends(
    train: Layout,
    rollout: Layout,
    *,
    together: bool = True,
    trainer: str = "fsdp",
    model: str = "Qwen/Qwen2.5-7B",
    lora: str = "",
) -> tuple[Placed, Placed]:
    """A trainer and an engine on H100 nodes of 8, on the same devices or one after the other."""
    flow = GRPO.replace("backend: fsdp, engine: {recompute: full}", f"backend: {trainer}")
    flow = flow.replace("{source: Qwen/Qwen2.5-7B}", f"{{source: {model}{lora}}}")
    told = told_text(flow)
    found: list[Placed] = []
    first = 0
    for role, layout in (("actor_train", train), ("actor_infer", rollout)):
        devices = tuple(f"node{at // 8}/{at % 8}" for at in range(first, first + layout.devices))
        pool = Pool(name=role, devices=devices, device="H100-80G", roles=(RolePlacement(role=role, layout=layout),))
        found.extend(placed_roles(told.graph, pool, told.shapes, told.cluster, told.request))
        first = 0 if together else layout.devices
    return found[0], found[1]


EIGHT = Layout(dp=8), Layout(dp=4, tp=2)


@pytest.mark.parametrize("transport", [None, *TRANSPORTS])
@pytest.mark.parametrize("way", [None, "shards", "gather", "broadcast"])
@pytest.mark.parametrize("trainer", ["fsdp", "megatron", "deepspeed"])
def test_every_line_is_its_formula(transport: str | None, way: str | None, trainer: str) -> None:
    pair = ends(*EIGHT, together=False, trainer=trainer)
    sync, links = sync_of(*pair, transport, way), sync_links(*pair, transport, way)
    assert sync.seconds == sum(each.value for each in (*sync.send, *sync.receive)) > 0
    for each in (*sync.send, *sync.receive, *links.moved, *links.overlap):
        assert each.value == pytest.approx(evaluate(each.formula, each.inputs))
        assert set(each.origins) == set(each.inputs)
        assert each.role in ("actor_train", "actor_infer")


def test_shared_memory_by_hand() -> None:
    """Each of 8 ranks writes an eighth, each of 2 tensor-parallel ranks reads a half (norms whole), over PCIe 5 at the
    profile's share."""
    source, target = ends(*EIGHT)
    sync = sync_of(source, target)
    whole = 2 * SHAPE.parameters
    link = source.device.host_bytes_per_second * source.rates.host
    assert (sync.transport, sync.way) == ("shared_memory", "shards")
    assert sync.send[0].value == pytest.approx(whole / 8 / link, rel=1e-3)
    assert sync.receive[0].value == pytest.approx(whole / 2 / link, rel=1e-3)


def test_a_broadcast_sends_all_and_shards_send_a_part() -> None:
    """Over the network between two nodes: every receiver of a broadcast gets the whole model, a receiver of shards its
    half."""
    pair = ends(Layout(dp=8), Layout(dp=4, tp=2), together=False)
    whole, rates = 2 * SHAPE.parameters, pair[0].profile.sync
    card = pair[0].group.network_bytes_per_second
    broadcast, shards = (sync_of(*pair, "nccl", way) for way in ("broadcast", "shards"))
    assert broadcast.receive[0].value == pytest.approx(whole / (card * rates["broadcast"].network))
    assert shards.receive[0].value == pytest.approx(whole / 2 / (card * rates["shards"].network), rel=1e-3)
    sent, least = (sync_links(*pair, "nccl", way) for way in ("broadcast", "shards"))
    assert {line.what: line.value for line in sent.moved}["weights broadcast"] == 8 * whole
    assert sent.overlap == least.overlap == least.moved
    assert sum(line.value for line in least.moved) == pytest.approx(8 * whole / 2, rel=1e-3)


def test_a_gather_moves_what_each_rank_lacks() -> None:
    pair = ends(*EIGHT)
    assert sync_of(*pair, "cuda_ipc").way == "gather"
    assert sync_links(*pair, "cuda_ipc").moved[0].value == pytest.approx(8 * 2 * SHAPE.parameters * 7 / 8, rel=1e-6)


def test_an_adapter_travels_alone() -> None:
    """The base stays: bytes are those of rank 16 beside all linear matrices."""
    adapted = ends(*EIGHT, lora=", lora: {rank: 16, alpha: 32}")
    plain, lora = sync_of(*ends(*EIGHT)), sync_of(*adapted)
    assert lora.seconds < plain.seconds
    each = 2 * SHAPE.hidden + 2 * SHAPE.q_width + 2 * (SHAPE.hidden + SHAPE.kv_width) + 3 * (SHAPE.hidden + SHAPE.ffn)
    moved = sum(line.value for line in sync_links(*adapted).moved)
    assert moved == pytest.approx(8 * 2 * 16 * SHAPE.layers * each)
    assert lora.receive[0].what == "adapter read"


def test_on_the_same_devices_a_matching_layout_moves_nothing() -> None:
    """Megatron and vLLM with the same tp, neighbours alike: every shard is where it is needed."""
    pair = ends(Layout(dp=4, tp=2), Layout(dp=4, tp=2), trainer="megatron")
    sync = sync_of(*pair, "cuda_ipc", "shards")
    assert {line.what for line in sync_links(*pair, "cuda_ipc", "shards").moved} == {"weights local"}
    assert sync.receive[0].value == 0


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_more_tensor_parallelism_reads_less(tp: int) -> None:
    wide, narrow = (sync_of(*ends(Layout(dp=8), Layout(dp=8 // each, tp=each))) for each in (tp, 2 * tp))
    assert narrow.seconds < wide.seconds


def test_older_generations_take_longer() -> None:
    """verl's broadcast tensor by tensor of 7B: 5.5 to 6.0 s on H100 (peers/perf_notes.md)."""
    source, target = ends(Layout(dp=8), Layout(dp=4, tp=2), together=False)
    old = replace(source.profile, generation={"sync": "tensors"})
    seconds = sync_of(_with_profile(source, old), _with_profile(target, old), "nccl").seconds
    assert seconds == pytest.approx(5.75, rel=0.3)
    assert seconds > sync_of(source, target, "nccl").seconds


def _with_profile(placed: Placed, profile: Profile) -> Placed:
    return dataclasses.replace(placed, profile=profile)


@pytest.mark.parametrize(
    ("source", "target", "on_cpu", "expected"),
    [
        (["node0/0", "node0/1"], ["node0/0"], False, "shared_memory"),
        (["node0/0"], ["node0/1"], True, "shared_memory"),
        (["node0/0", "node1/0"], ["node0/0", "node1/0"], False, "cuda_ipc"),
        (["node0/0"], ["node1/0"], False, "nccl"),
        (["node0/0"], ["node1/0"], True, "object_store"),
        (["node0/0", "node0/1"], ["node0/1", "node1/0"], False, "object_store"),
    ],
)
def test_the_default_transport_is_legal(source: list[str], target: list[str], on_cpu: bool, expected: str) -> None:
    found = default_transport(source, target, on_cpu)
    assert found == expected
    assert found in legal_transports(source, target, on_cpu)


def test_uneven_stages_and_replicated_heads_are_placed() -> None:
    """GQA with 4 key-value heads under tp 8: each head is on two ranks, so an engine takes more than an eighth."""
    source, target = ends(Layout(dp=8), Layout(tp=8))
    assert cut_of(target).tp > SHAPE.kv_heads
    sync = sync_of(source, target)
    repeated = SHAPE.layers * 2 * SHAPE.hidden * SHAPE.kv_width
    took = {line.what: line.inputs for line in sync.receive}["weights read"]["r"]
    assert took == pytest.approx(2 * (SHAPE.parameters + repeated) / 8, rel=2e-3)


def test_a_sync_is_quick() -> None:
    """Of 70B from 128 ranks to 64: kept, and new. Generous, other work runs beside this."""
    told = ends(Layout(dp=128), Layout(dp=8, tp=8), together=False, model="meta-llama/Llama-3.1-70B")
    sync_of(*told)
    start = time.process_time()
    for _ in range(100):
        sync_of(*told)
    assert (time.process_time() - start) / 100 < 5e-4
