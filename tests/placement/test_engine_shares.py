"""What an engine may take of a device where the flow leaves it open: the largest share with which its pool fits."""

from __future__ import annotations

from msgspec.structs import replace

from flowrl.machine.engines import KV_FRACTION
from flowrl.placement.memory.pool import memory
from flowrl.placement.time.step import step_seconds
from flowrl.plan.plan import RolePlacement
from tests.placement.flows import GRPO, with_placement
from tests.placement.told import Told, told_text

USUAL = "engine: {kv_fraction: 0.85},"
OPEN = told_text(with_placement(GRPO, "colocated"))
WRITTEN = told_text(with_placement(GRPO.replace("backend: vllm,", f"backend: vllm, {USUAL}"), "colocated"))


def entry(told: Told, role: str = "actor_infer") -> RolePlacement:
    return next(each for pool in told.placement.pools for each in pool.roles if each.role == role)


def seconds(told: Told) -> float:
    return step_seconds(told.graph, told.placement.pools, told.shapes, told.cluster, told.request)


def fits_with(told: Told, share: float) -> bool:
    pools = tuple(
        replace(
            pool,
            roles=tuple(replace(e, memory_share=share) if e.role == "actor_infer" else e for e in pool.roles),
        )
        for pool in told.placement.pools
    )
    held = memory(told.graph, pools, told.shapes, told.cluster, request=told.request)
    return all(each.peak_bytes <= each.limit_bytes for each in held)


def test_an_engine_takes_the_largest_hundredth_that_others_leave_it() -> None:
    share = entry(OPEN).memory_share
    assert OPEN.placement.fits
    assert share is not None
    assert share < KV_FRACTION
    assert fits_with(OPEN, share)
    assert not fits_with(OPEN, round(share + 0.01, 2))


def test_a_choice_more_makes_no_step_longer() -> None:
    assert WRITTEN.placement.fits
    assert entry(WRITTEN).memory_share is None
    assert seconds(OPEN) <= seconds(WRITTEN)


def test_it_is_a_decision_that_names_its_key() -> None:
    (found,) = (each for each in OPEN.placement.decisions if each.what == "memory of actor_infer")
    assert found.chosen == f"{entry(OPEN).memory_share:.2f} of a device"
    assert found.reason == "needed_to_fit"
    assert found.override == "roles.actor_infer.engine.kv_fraction"
    assert [each.option for each in found.rejected] == ["0.85"]
    held = next(
        line
        for each in OPEN.placement.memory
        for line in each.lines
        if line.what == "KV cache" and line.role == "actor_infer"
    )
    assert held.inputs["u"] == entry(OPEN).memory_share
    assert held.origins["u"] == f"decided {found.id}"


def test_what_the_flow_writes_is_kept() -> None:
    assert not any(each.what == "memory of actor_infer" for each in WRITTEN.placement.decisions)


def test_an_engine_alone_takes_what_it_usually_does() -> None:
    apart = told_text(with_placement(GRPO, "{apart: [[actor_infer, actor_train], [actor_infer, reward]]}"))
    assert entry(apart).memory_share is None
