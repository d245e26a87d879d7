"""Which launcher runs a plan, and how it is made. Imports Ray only where Ray is chosen."""

from __future__ import annotations

import os
from importlib.util import find_spec

from flowrl.backends.registry import backend_of
from flowrl.diag.diagnostic import FlowError, InternalError, diagnose
from flowrl.plan.plan import Plan, StagePlan
from flowrl.runtime.launchers.contract import Launcher

INLINE, RAY, AUTO = "inline", "ray", "auto"

OWN_PROCESS = frozenset({"vllm"})
"""Backends that must not share a process with a trainer: they take its threads."""


def choose(plan: Plan, wanted: str = AUTO) -> str:
    """`inline` or `ray`: as asked for, else inline where every role has one rank and every pool is on the CPU."""
    if wanted in (INLINE, RAY):
        return wanted
    if wanted != AUTO:
        raise InternalError(f"no launcher `{wanted}`")
    on_cpu = {group.device.name for group in plan.cluster.groups if group.device.is_cpu}
    return INLINE if all(_fits_inline(stage, on_cpu) for stage in plan.stages) else RAY


def make_launcher(kind: str, threads: int) -> Launcher:
    """Raises FlowError FR0913 if Ray is chosen and not installed."""
    if kind == INLINE:
        from flowrl.runtime.launchers.inline import InlineLauncher

        return InlineLauncher(threads)
    if find_spec("ray") is None:
        raise FlowError(diagnose("FR0913", what="the launcher `ray`", package="ray", extra="ray"))
    from flowrl.runtime.launchers.ray import RayLauncher

    return RayLauncher(threads)


def available_threads() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _fits_inline(stage: StagePlan, on_cpu: set[str]) -> bool:
    return (
        all(placed.layout.devices == 1 for pool in stage.pools for placed in pool.roles)
        and all(not pool.devices or pool.device in on_cpu for pool in stage.pools)
        and not any(backend_of(role) in OWN_PROCESS for role in stage.graph.roles if role.model is not None)
    )
