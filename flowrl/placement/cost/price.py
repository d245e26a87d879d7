"""What a step costs at the prices that the flow gives: the devices of all pools, for as long as the step takes."""

from __future__ import annotations

from collections.abc import Sequence

from flowrl.machine.cluster import Cluster
from flowrl.placement.cost.ledger import Given, line
from flowrl.placement.cost.placed import group_of
from flowrl.plan.plan import LedgerLine, Pool

SECONDS_PER_HOUR = 3600
PER_HOUR, PER_STEP = "price per hour", "price per step"


def price_lines(pools: Sequence[Pool], cluster: Cluster, step_seconds: float) -> tuple[LedgerLine, ...]:
    """Price per hour and per step, in the currency of the prices; nothing unless every pool's group has one."""
    placed = [(pool, group_of(pool, cluster)) for pool in pools if pool.devices]
    if not placed or any(group.price_per_gpu_hour is None for _, group in placed):
        return ()
    inputs = {"seconds": Given(step_seconds, "simulated"), "hour": Given(SECONDS_PER_HOUR, "seconds of an hour")}
    terms: list[str] = []
    for place, (pool, group) in enumerate(placed):
        inputs[f"n{place}"] = Given(len(pool.devices), f"devices of pool {pool.name}")
        inputs[f"p{place}"] = Given(group.price_per_gpu_hour or 0.0, f"price_per_gpu_hour of {group.name}")
        terms.append(f"n{place}*p{place}")
    total = " + ".join(terms)
    return (
        line(PER_HOUR, None, "price", total, inputs),
        line(PER_STEP, None, "price", f"({total})*seconds/hour", inputs),
    )
