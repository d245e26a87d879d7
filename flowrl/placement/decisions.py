"""What placement decided, in words: chosen, rejected with a reason and a delta, the key that overrides it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from flowrl.graph.graph import Edge, Graph, Role
from flowrl.graph.weights import carries_adapter
from flowrl.machine.cluster import Cluster
from flowrl.placement.chosen import layout_decision, memory_decision, micro_batch_decision
from flowrl.placement.layouts import change_text, needs_text
from flowrl.placement.request import GPU_SECONDS, GPUS, PRICE, STEP_TIME, Mode, PlacementRequest
from flowrl.placement.search import Candidate, Found
from flowrl.plan.plan import Decision, Pool, Rejected, RolePlacement

MOST_REJECTED = 6


def decide(graph: Graph, cluster: Cluster, request: PlacementRequest, found: Found) -> tuple[Decision, ...]:
    """D1 is the choice of pools; then the layout of each role, who leaves its devices, what trainers recompute, and
    micro-batches and memory of engines that the flow leaves open."""
    best = found.best
    device_pools = [pool for pool in best.laid.pools if pool.devices]
    if not device_pools:
        return ()
    drafts = [
        _pools(request, found),
        *(_layout(request, found, pool, entry) for pool in device_pools for entry in pool.roles),
        *(decision for pool in device_pools for decision in _residency(graph, cluster, pool)),
        *(_recompute(graph, found, entry) for pool in device_pools for entry in pool.roles if _trains(graph, entry)),
        *(each for pool in device_pools for entry in pool.roles for each in _micro_batch(found, pool, entry)),
        *(each for pool in device_pools for entry in pool.roles for each in _memory(graph, found, pool, entry)),
        *(_adapter(edge) for edge in graph.edges if carries_adapter(graph, edge)),
        *(_unmodelled(role) for role in graph.roles if role.engine.extra),
    ]
    return tuple(replace(draft, id=f"D{number}") for number, draft in enumerate(drafts, start=1))


def _pools(request: PlacementRequest, found: Found) -> Decision:
    best = found.in_parts.get(found.best.option.label, found.best)
    tried = (found.in_parts.get(each.option.label, each) for each in found.tried if each is not found.best)
    others = sorted(tried, key=Candidate.rank)
    return Decision(
        id="",
        what="pools",
        chosen=best.option.label,
        reason=_reason_of_pools(request, best, len(others)),
        text=_text_of_pools(request, found, others),
        rejected=tuple(_rejected(each, best, request.objective) for each in others[:MOST_REJECTED]),
        override="placement",
    )


_BEST = {STEP_TIME: "fastest", GPU_SECONDS: "fewest_gpu_seconds", PRICE: "cheapest", GPUS: "fewest_gpus"}


def _reason_of_pools(request: PlacementRequest, best: Candidate, others: int) -> str:
    if not best.laid.fits:
        return "nearest_to_fitting"
    if others or request.mode is Mode.AUTO:
        return _BEST[request.objective] if others else "only_option"
    return "asked_for"


def _text_of_pools(request: PlacementRequest, found: Found, others: Sequence[Candidate]) -> str:
    shape = " | ".join(
        f"{pool.name}: {', '.join(entry.role for entry in pool.roles)}"
        for pool in found.best.laid.pools
        if pool.devices
    )
    if not others:
        return shape
    fitting = sum(each.usable for each in others)
    more = max(0, len(others) - MOST_REJECTED)
    ways = "1 other way was worked out" if len(others) == 1 else f"{len(others)} other ways were worked out"
    fit = {0: "none fits", 1: "1 fits"}.get(fitting, f"{fitting} fit")
    listed = f"; {more} more {'is' if more == 1 else 'are'} not listed" if more else ""
    return f"{shape}; {ways}, {fit}{listed}{_proof(found)}"


def _proof(found: Found) -> str:
    """How near to the best it is."""
    if not found.best.usable:
        return ""
    if found.in_parts:
        return f"; the best {len(found.in_parts)} compared with generation in parts"
    if found.proved:
        return f"; proven best of {found.report.space}"
    return f"; at most {found.gap:.1%} over the best of {found.report.space}" if found.gap else ""


def _rejected(candidate: Candidate, best: Candidate, objective: str) -> Rejected:
    label, tightest = candidate.option.label, candidate.laid.tightest
    if candidate.starved:
        return Rejected(option=label, reason="ranks_without_rows")
    if not candidate.laid.fits and tightest is not None:
        return Rejected(option=label, reason="does_not_fit", delta=needs_text(tightest))
    if candidate.late:
        return Rejected(option=label, reason="too_slow", delta=_delta(candidate.seconds, best.seconds, STEP_TIME))
    # A recomputation is compared by its step whatever the flow minimises: it takes no more devices.
    theirs, ours = (each.seconds if objective == STEP_TIME else each.value for each in (candidate, best))
    reason = ("slower" if objective == STEP_TIME else "costs_more") if theirs > ours else "not_preferred"
    return Rejected(option=label, reason=reason, delta=_delta(theirs, ours, objective))


_UNITS = {STEP_TIME: "step time", GPU_SECONDS: "GPU-seconds", PRICE: "price", GPUS: "GPUs"}


def _delta(value: float, best: float, objective: str) -> str:
    return f"{change_text(value / max(best, 1e-12) - 1.0)} {_UNITS[objective]}"


def _layout(request: PlacementRequest, found: Found, pool: Pool, entry: RolePlacement) -> Decision:
    asked = any(entry.role in each.layouts for each in request.pools if each.name == pool.name)
    site, fits = found.sites[entry.role], _fits(found.best, pool)
    return layout_decision(found.choices, site, pool.name, entry, asked=asked, fits=fits)


def _fits(best: Candidate, pool: Pool) -> bool:
    return all(each.peak_bytes <= each.limit_bytes for each in best.laid.memory if each.pool == pool.name)


def _micro_batch(found: Found, pool: Pool, entry: RolePlacement) -> Iterator[Decision]:
    fits = _fits(found.best, pool)
    decision = micro_batch_decision(found.choices, found.sites[entry.role], entry, fits=fits)
    yield from () if decision is None else (decision,)


def _memory(graph: Graph, found: Found, pool: Pool, entry: RolePlacement) -> Iterator[Decision]:
    decision = memory_decision(found.choices, graph.role(entry.role), pool, entry, fits=_fits(found.best, pool))
    yield from () if decision is None else (decision,)


def _residency(graph: Graph, cluster: Cluster, pool: Pool) -> Iterator[Decision]:
    if len(pool.roles) < 2:
        return
    is_cpu = any(group.device.is_cpu and group.device.name == pool.device for group in cluster.groups)
    for entry in pool.roles:
        asked = graph.role(entry.role).engine.offload is not None
        if is_cpu and not asked:
            continue
        chosen = "leaves the devices while others work" if entry.offloaded else "stays on the devices"
        needed = "so the pool fits, and no other way is faster" if entry.offloaded else "there is room"
        yield Decision(
            id="",
            what=f"offload of {entry.role}",
            chosen=chosen,
            reason="asked_for" if asked else "needed_to_fit" if entry.offloaded else "fits",
            text=f"{entry.role} {chosen}: {'the flow says so' if asked else needed}",
            override=f"roles.{entry.role}.engine.offload",
        )


def _trains(graph: Graph, entry: RolePlacement) -> bool:
    return graph.role(entry.role).trainable


_ACTIVATIONS = {
    "none": "keeps its activations",
    "selective": "recomputes a part of its activations",
    "full": "recomputes its activations",
}


def _adapter(edge: Edge) -> Decision:
    return Decision(
        id="",
        what=f"weights of {edge.id}",
        chosen="adapter",
        reason="fastest",
        text=f"{edge.id} carries the adapter alone: both ends hold the same frozen base",
        rejected=(Rejected(option="merged weights", reason="slower"),),
    )


def _unmodelled(role: Role) -> Decision:
    keys = ", ".join(sorted(role.engine.extra))
    return Decision(
        id="",
        what=f"unmodelled of {role.name}",
        chosen=keys,
        reason="asked_for",
        text=f"{role.name} passes {keys} on to its backend as written; no number of this plan knows what that changes",
        override=f"roles.{role.name}.engine.extra",
    )


def _recompute(graph: Graph, found: Found, entry: RolePlacement) -> Decision:
    passed = tuple(_other_recompute(each, found.best, entry) for each in found.recomputed.get(entry.role, ()))
    reason, why = _reason_of_recompute(graph, found.best, entry, passed)
    return Decision(
        id="",
        what=f"recompute of {entry.role}",
        chosen=entry.recompute,
        reason=reason,
        text=f"{entry.role} {_ACTIVATIONS[entry.recompute]} (recompute {entry.recompute}): {why}",
        rejected=passed,
        override=f"roles.{entry.role}.engine.recompute",
    )


def _other_recompute(other: Candidate, best: Candidate, entry: RolePlacement) -> Rejected:
    """The placement that differs in this trainer's choice."""
    value = next(each.recompute for pool in other.laid.pools for each in pool.roles if each.role == entry.role)
    return replace(_rejected(other, best, STEP_TIME), option=value)


def _reason_of_recompute(
    graph: Graph, best: Candidate, entry: RolePlacement, passed: Sequence[Rejected]
) -> tuple[str, str]:
    if graph.role(entry.role).engine.recompute is not None:
        return "asked_for", "the flow says so"
    if not best.laid.fits:
        return "nearest_to_fitting", "no choice fits"
    if entry.recompute == "none":
        return "fits", "there is room"
    none = next((each for each in passed if each.option == "none"), None)
    if none is not None and none.reason != "does_not_fit":
        return "fastest", "the room that it frees saves more time than it takes"
    return "needed_to_fit", "they do not fit"
