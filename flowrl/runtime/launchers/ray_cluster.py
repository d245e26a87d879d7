"""Ray itself: connecting, one placement group per pool, and where each rank's actor goes.

On a CPU host a device of the plan is one slot of the custom resource `flowrl_slot` (a Ray cluster started by hand may
offer it, else a CPU stands for it); elsewhere it is a GPU. Knows pools and nodes; no roles' work, no rows, no weights.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from flowrl.diag.diagnostic import FlowError, diagnose
from flowrl.diag.span import Span
from flowrl.plan.plan import Plan, Pool

SLOT = "flowrl_slot"
READY_SECONDS = 60.0
QUIET = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_max_direct_call_object_size": "8192",
}
"""What FlowRL wants of Ray unless the user's environment says otherwise: a local cluster without tokens, no usage data
sent, no warnings about its own future; and rows of more than 8 KiB (Ray's own limit is 100) in the shared memory of the
host that made them, not in the messages of the driver. A cluster started by hand needs the last one in its own
environment."""


@contextmanager
def signals_through() -> Iterator[None]:
    """Around a wait on Ray: what a signal handler raises in it, Ray turns into a SystemError; here it comes out as it
    was raised."""
    try:
        yield
    except SystemError as error:
        if error.__cause__ is None:
            raise
        raise error.__cause__ from None


@dataclass(slots=True)
class PoolGroup:
    """The placement group of a pool. `bundles` are its bundle numbers in the order of ranks: node by node."""

    pool: str
    resource: str
    group: Any
    bundles: tuple[int, ...]


def import_ray() -> Any:
    """Ray, imported with the environment it reads at import."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    import ray

    return ray


def connect(plan: Plan, pools: Sequence[Pool], address: str | None) -> bool:
    """Connect to `address`, `RAY_ADDRESS` or, with neither, a Ray of our own on this host that dies with this process.

    Gives whether it must be shut down afterwards: not if the process was connected already. Raises FlowError FR0953.
    """
    ray = import_ray()
    if ray.is_initialized():
        return False
    address = address or os.environ.get("RAY_ADDRESS")
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is not None:
        options |= {"address": address}
    else:
        slots = sum(len(pool.devices) for pool in pools if on_cpu(plan, pool))
        options |= {"include_dashboard": False, "num_cpus": max(os.cpu_count() or 1, slots), "resources": {SLOT: slots}}
    former = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(**options)
        _listen_again(former)
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
        raise FlowError(diagnose("FR0953", address=address or "this host", reason=reason)) from error
    _mute()
    return True


def _listen_again(former: object) -> None:
    """Ray takes SIGTERM for itself; a run that listens to it ends with a checkpoint (runtime/interrupts.py)."""
    if callable(former) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, former)


def _mute() -> None:
    """Ray tells the terminal of every process that dies, whatever `log_to_driver` says; FlowRL tells it as FR0955."""
    import ray._private.worker as worker

    worker.print_to_stdstream = lambda *_, **__: None


def on_cpu(plan: Plan, pool: Pool) -> bool:
    """Whether the pool's devices are CPU slots."""
    return any(group.device.is_cpu and group.device.name == pool.device for group in plan.cluster.groups)


def reserve(plan: Plan, pools: Sequence[Pool]) -> dict[str, PoolGroup]:
    """A placement group for each pool that has devices, all reserved. Raises FlowError FR0954 if the Ray cluster has
    too few devices, or they are not free within a minute."""
    made: dict[str, PoolGroup] = {}
    try:
        for pool in pools:
            if pool.devices:
                made[pool.name] = _reserve(plan, pool)
    except BaseException:
        release(made)
        raise
    return made


def release(groups: dict[str, PoolGroup]) -> None:
    from ray.util.placement_group import remove_placement_group

    for group in groups.values():
        with suppress(Exception):  # the cluster may be gone already
            remove_placement_group(group.group)
    groups.clear()


def actor_options(group: PoolGroup | None, rank: int, roles: int) -> dict[str, Any]:
    """Ray's options for the actor of a rank: its device, or an equal share of it if several roles take turns on the
    pool; without a group (the pool `host`) a place beside the driver."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

    options: dict[str, Any] = {"num_cpus": 0, "max_restarts": 0}
    if group is None:
        here = ray.get_runtime_context().get_node_id()
        return options | {"scheduling_strategy": NodeAffinitySchedulingStrategy(here, soft=False)}
    share = 1.0 if roles == 1 else int(10_000 / roles) / 10_000
    options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(
        group.group, placement_group_bundle_index=group.bundles[rank]
    )
    if group.resource == "GPU":
        return options | {"num_gpus": share}
    if group.resource == "CPU":
        return options | {"num_cpus": share}
    return options | {"resources": {group.resource: share}}


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def _reserve(plan: Plan, pool: Pool) -> PoolGroup:
    import ray
    from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group

    resource = _resource(plan, pool)
    _require(plan, pool, resource, ray.cluster_resources().get(resource, 0.0), "has")
    group = placement_group([{resource: 1.0} for _ in pool.devices], strategy="PACK")
    deadline = time.monotonic() + READY_SECONDS
    while not group.wait(timeout_seconds=1):
        if time.monotonic() > deadline:
            remove_placement_group(group)
            _require(plan, pool, resource, ray.available_resources().get(resource, 0.0), "has free")
    nodes: dict[int, str] = placement_group_table(group)["bundles_to_node_id"]
    return PoolGroup(pool.name, resource, group, tuple(sorted(nodes, key=lambda bundle: (nodes[bundle], bundle))))


def _resource(plan: Plan, pool: Pool) -> str:
    import ray

    if not on_cpu(plan, pool):
        return "GPU"
    return SLOT if ray.cluster_resources().get(SLOT) else "CPU"


def _require(plan: Plan, pool: Pool, resource: str, there: float, has: str) -> None:
    if there < len(pool.devices):
        facts = {"pool": pool.name, "need": len(pool.devices), "resource": resource, "there": f"{there:g}", "has": has}
        raise FlowError(diagnose("FR0954", _span_of(plan, pool), **facts))


def _span_of(plan: Plan, pool: Pool) -> Span | None:
    """Where the flow has a role of the pool."""
    here = {entry.role for entry in pool.roles}
    roles = (role for stage in plan.stages if pool in stage.pools for role in stage.graph.roles if role.name in here)
    return next((role.span for role in roles if role.span is not None), None)
