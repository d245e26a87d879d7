"""What would help: the few changes that may make a step shorter, each planned again, with what it saves.

Takes a plan and a planner; gives the critical circle in the user's words, and for each change the difference in
seconds. Guesses nothing: a change that does not fit, or saves nothing, is told as that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import replace

from flowrl.compiler.emit.sessions import MOST_TAKES
from flowrl.execution.expand import is_plain
from flowrl.graph.graph import EdgeKind, Graph
from flowrl.graph.params import UpdateParams
from flowrl.machine.cluster import Cluster, NodeGroup
from flowrl.plan.plan import Estimate, Plan, Pool, RolePlacement, StagePlan
from flowrl.program.program import Instruction

SAME_SHARE = 0.005
"""Steps that differ by less are as long: an estimate knows no better."""
LEAST_SHARE = 0.01
"""Of the step, below which an op on the critical circle is not named."""
WHOLE_NODE = 8
"""Devices of a node from which on a cluster grows by nodes."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """Something to plan again with."""

    what: str
    """In words."""
    sets: tuple[str, ...] = ()
    """`KEY=VALUE`, as `--set` takes it."""
    grown: str | None = None
    """Group of devices that has more: a node, or where nodes are small, a device."""


class Help(msgspec.Struct, frozen=True, kw_only=True):
    """What one change does."""

    change: Change
    verdict: str
    """faster, same, slower, does_not_fit or refused."""
    step_seconds: float | None = None
    """Of a step in the mean, lengths drawn; None where there is no plan."""
    saved_seconds: float | None = None
    saved_share: float | None = None


class Helps(msgspec.Struct, frozen=True, kw_only=True):
    """What would help a stage."""

    stage: str
    step_seconds: float
    """Of a step in the mean, lengths drawn."""
    bound_by: tuple[str, ...]
    """Ops and weights edges of the critical circle, in order, as the flow writes them."""
    text: str
    """One sentence."""
    helps: tuple[Help, ...]
    """What saves most first."""


Planner = Callable[[Change], Plan | None]
"""The plan with a change; None where the flow with it is refused."""


def what_would_help(plan: Plan, planner: Planner, explicit: bool = False) -> tuple[Helps, ...]:
    """For each stage. `explicit`: pools stand in the flow, so that one of them must be told to grow."""
    found: list[Helps] = []
    known: dict[Change, Plan | None] = {}
    for stage in plan.stages:
        tried: list[Help] = []
        for change in changes(stage, plan.cluster, explicit):
            if change not in known:
                known[change] = planner(change)
            tried.append(_help(stage, change, known[change]))
        ordered = sorted(tried, key=lambda each: -round((each.saved_share or 0.0) / SAME_SHARE))
        circle = bound_by(stage)
        found.append(
            Helps(
                stage=stage.name,
                step_seconds=expected(stage.estimate),
                bound_by=circle,
                text=_sentence(circle, ordered),
                helps=tuple(ordered),
            )
        )
    return tuple(found)


def expected(estimate: Estimate) -> float:
    """Seconds of a step: the mean with lengths drawn, where they are."""
    return estimate.step_seconds if estimate.random is None else estimate.random.mean_seconds


def bound_by(stage: StagePlan) -> tuple[str, ...]:
    """The critical circle in the flow's words, from its first op: all firings of an op once, an edge for both its ends,
    nothing that takes under a hundredth of the step."""
    by_id = {each.id: each for each in stage.programs.instructions}
    least = LEAST_SHARE * stage.estimate.step_seconds
    seconds: dict[str, float] = {}
    for id in (each for each in stage.estimate.critical if is_plain(by_id[each])):
        name = _said(by_id[id], stage.graph)
        seconds[name] = seconds.get(name, 0.0) + stage.estimate.durations[id]
    circle = tuple(name for name, each in seconds.items() if each >= least)
    first = next((circle.index(op.id) for op in stage.graph.ops if op.id in circle), 0)
    return circle[first:] + circle[:first]


def _said(instruction: Instruction, graph: Graph) -> str:
    if instruction.op is not None:
        return instruction.op
    if instruction.edge is not None:
        edge = next(each for each in graph.edges if each.id == instruction.edge)
        return f"{edge.source.split('.')[0]} => {edge.target.split('.')[0]}"
    return f"{instruction.kind} {instruction.role}"


def changes(stage: StagePlan, cluster: Cluster, explicit: bool) -> tuple[Change, ...]:
    """What may help a stage, bound as it is: devices, lag, partial rollouts, parts of generation, and other settings of
    the roles that are critical."""
    pool = _bottleneck(stage)
    return (
        *([] if pool is None else _more_devices(pool, stage, cluster, explicit)),
        *_later(stage),
        *_sooner(stage),
        *([] if pool is None else _of_roles(stage, pool)),
    )


def _bottleneck(stage: StagePlan) -> Pool | None:
    """The pool on devices that works longest on the critical circle."""
    by_id = {each.id: each for each in stage.programs.instructions}
    load: dict[str, float] = {}
    for id in (each for each in stage.estimate.critical if is_plain(by_id[each])):
        load[by_id[id].pool] = load.get(by_id[id].pool, 0.0) + stage.estimate.durations[id]
    pools = [pool for pool in stage.pools if pool.devices]
    return max(pools, key=lambda pool: load.get(pool.name, 0.0), default=None)


def _more_devices(pool: Pool, stage: StagePlan, cluster: Cluster, explicit: bool) -> list[Change]:
    group = next(each for each in cluster.groups if each.device.name == pool.device)
    if group.device.is_cpu:
        return []
    more = group.devices_per_node if _grows_by_nodes(group) else 1
    name = f"{more} more {group.device.name}"
    if not explicit:
        return [Change(what=name, grown=group.name)]
    key, count = f"placement.pools.{pool.name}.gpus", len(pool.devices)
    found = [Change(what=f"{name} in pool {pool.name}", sets=(f"{key}={count + more}",), grown=group.name)]
    others = [each for each in stage.pools if each.devices and each is not pool and each.device == pool.device]
    largest = max(others, key=lambda each: len(each.devices), default=None)
    if largest is not None and len(largest.devices) > 1:
        moved = max(1, len(largest.devices) // 4)
        sets = (f"{key}={count + moved}", f"placement.pools.{largest.name}.gpus={len(largest.devices) - moved}")
        found.append(Change(what=f"{moved} of {largest.name}'s devices in pool {pool.name}", sets=sets))
    return found


def grown(cluster: Cluster, name: str) -> Cluster:
    """The cluster with one more node in a group; with one more device where it is a part of a node."""

    def larger(group: NodeGroup) -> NodeGroup:
        if group.name != name:
            return group
        if _grows_by_nodes(group):
            return replace(group, nodes=group.nodes + 1)
        return replace(group, devices_per_node=group.devices_per_node + 1)

    return replace(cluster, groups=tuple(map(larger, cluster.groups)))


def _grows_by_nodes(group: NodeGroup) -> bool:
    return group.nodes > 1 or group.devices_per_node >= WHOLE_NODE


def _later(stage: StagePlan) -> list[Change]:
    """Samples that may be a version older, and rollouts that go on under new weights."""
    trained = {op.role for op in stage.graph.ops if op.method == "update"}
    made = {op.role for op in stage.graph.ops if op.method == "generate"}
    ends = ((e.source.split(".")[0], e.target.split(".")[0]) for e in stage.graph.edges if e.kind is EdgeKind.WEIGHTS)
    if not any(source in trained and target in made for source, target in ends):
        return []
    schedule, lag = stage.graph.schedule, stage.graph.schedule.max_lag
    found = [Change(what=f"max_lag {lag + 1}", sets=(f"schedule.max_lag={lag + 1}",))]
    if not schedule.partial_rollout:
        late = max(1, lag)
        sets = ("schedule.partial_rollout=true", f"schedule.max_lag={late}")
        found.append(Change(what=f"partial rollouts, max_lag {late}", sets=sets))
    return found


def _sooner(stage: StagePlan) -> list[Change]:
    """Responses that are handed on as they are done, where somebody on other devices waits for them; and updates that
    begin with them."""
    graph, schedule = stage.graph, stage.graph.schedule
    pool_of = {entry.role: pool.name for pool in stage.pools if pool.devices for entry in pool.roles}
    makes = {op.id: pool_of.get(op.role) for op in graph.ops if op.method == "generate" and op.label is None}
    read = [
        (op, item.source)
        for op in graph.ops
        for item in op.inputs
        if item.source in makes and op.role in pool_of and pool_of[op.role] != makes[item.source]
    ]
    if not read:
        return []
    parts = f"schedule.takes={MOST_TAKES}"
    found = [] if schedule.takes > 1 else [Change(what=f"generation in up to {MOST_TAKES} parts", sets=(parts,))]
    if schedule.minibatches == "fixed" and any(op.method == "update" and op.firings > 1 for op, _ in read):
        sets = (parts, "schedule.minibatches=arrival")
        found.append(Change(what="minibatches of what is done first", sets=sets))
    return found


def _of_roles(stage: StagePlan, pool: Pool) -> list[Change]:
    """Of the roles that work on the critical circle: another recomputation, layout free, larger micro-batches."""
    critical = {each.role for each in stage.programs.instructions if each.id in stage.estimate.critical}
    found: list[Change] = []
    for entry in (each for each in pool.roles if each.role in critical):
        found += _recomputed(stage, entry)
        update = next((op.params for op in stage.graph.ops if op.role == entry.role and op.method == "update"), None)
        if isinstance(update, UpdateParams):
            tokens = 2 * (entry.micro_batch_tokens or update.micro_batch_tokens)
            key = f"roles.{entry.role}.update.micro_batch_tokens={tokens}"
            found.append(Change(what=f"{entry.role}: micro-batches of {tokens:,} tokens", sets=(key,)))
    return found


def _recomputed(stage: StagePlan, entry: RolePlacement) -> list[Change]:
    if not stage.graph.role(entry.role).trainable or entry.recompute == "none":
        return []
    ways = [way for way in ("none", "selective") if way != entry.recompute]
    key = f"roles.{entry.role}.engine.recompute"
    return [Change(what=f"{entry.role}: recompute {way}", sets=(f"{key}={way}",)) for way in ways]


def _help(stage: StagePlan, change: Change, plan: Plan | None) -> Help:
    other = None if plan is None else next((each for each in plan.stages if each.name == stage.name), None)
    if plan is None or other is None:
        return Help(change=change, verdict="refused")
    if plan.verdict == "infeasible":
        return Help(change=change, verdict="does_not_fit")
    before, after = expected(stage.estimate), expected(other.estimate)
    share = (before - after) / before if before > 0 else 0.0
    verdict = "same" if abs(share) < SAME_SHARE else "faster" if share > 0 else "slower"
    return Help(change=change, verdict=verdict, step_seconds=after, saved_seconds=before - after, saved_share=share)


def _sentence(circle: Sequence[str], helps: Sequence[Help]) -> str:
    """`bound by a → b → c; max_lag 1 would save 31 %`."""
    bound = f"bound by {' → '.join(circle)}" if circle else "bound by the slots of the host"
    best = next((each for each in helps if each.verdict == "faster"), None)
    if best is None or best.saved_share is None:
        return f"{bound}; nothing that was tried saves time"
    return f"{bound}; {best.change.what} would save {100 * best.saved_share:.0f} %"
