"""What placement decided, in words: chosen, rejected with a reason and a delta, the key that overrides it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from flowrl.graph.graph import Edge, EdgeKind, Graph, Role
from flowrl.machine.cluster import Cluster
from flowrl.machine.traits import TRAITS
from flowrl.placement.layouts import layout_text, needs_text
from flowrl.placement.request import Mode, PlacementRequest
from flowrl.placement.search import Candidate
from flowrl.plan.plan import Decision, Pool, Rejected, RolePlacement

MOST_REJECTED = 6


def decide(
    graph: Graph, cluster: Cluster, request: PlacementRequest, best: Candidate, tried: Sequence[Candidate]
) -> tuple[Decision, ...]:
    """D1 is the choice of pools; then the layout of each role, who leaves its devices, and what trainers recompute."""
    device_pools = [pool for pool in best.laid.pools if pool.devices]
    if not device_pools:
        return ()
    drafts = [
        _pools(request, best, tried),
        *(_layout(graph, request, best, pool, entry) for pool in device_pools for entry in pool.roles),
        *(decision for pool in device_pools for decision in _residency(graph, cluster, pool)),
        *(_recompute(graph, best, entry) for pool in device_pools for entry in pool.roles if _trains(graph, entry)),
        *(_adapter(edge) for edge in graph.edges if _has_adapters(graph, edge)),
        *(_unmodelled(role) for role in graph.roles if role.engine.extra),
    ]
    return tuple(replace(draft, id=f"D{number}") for number, draft in enumerate(drafts, start=1))


def _pools(request: PlacementRequest, best: Candidate, tried: Sequence[Candidate]) -> Decision:
    others = sorted((each for each in tried if each is not best), key=Candidate.rank)
    return Decision(
        id="",
        what="pools",
        chosen=best.option.label,
        reason=_reason_of_pools(request, best, len(others)),
        text=_text_of_pools(best, others),
        rejected=tuple(_rejected(each, best) for each in others[:MOST_REJECTED]),
        override="placement",
    )


def _reason_of_pools(request: PlacementRequest, best: Candidate, others: int) -> str:
    if not best.laid.fits:
        return "nearest_to_fitting"
    if others:
        return "fastest"
    return "only_option" if request.mode is Mode.AUTO else "asked_for"


def _text_of_pools(best: Candidate, others: Sequence[Candidate]) -> str:
    shape = " | ".join(
        f"{pool.name}: {', '.join(entry.role for entry in pool.roles)}" for pool in best.laid.pools if pool.devices
    )
    if not others:
        return shape
    fitting = sum(each.laid.fits and not each.starved for each in others)
    more = max(0, len(others) - MOST_REJECTED)
    ways = "1 other way was tried" if len(others) == 1 else f"{len(others)} other ways were tried"
    fit = {0: "none fits", 1: "1 fits"}.get(fitting, f"{fitting} fit")
    return f"{shape}; {ways}, {fit}" + (f"; {more} more {'is' if more == 1 else 'are'} not listed" if more else "")


def _rejected(candidate: Candidate, best: Candidate) -> Rejected:
    label, tightest = candidate.option.label, candidate.laid.tightest
    if candidate.starved:
        return Rejected(option=label, reason="ranks_without_rows")
    if not candidate.laid.fits and tightest is not None:
        return Rejected(option=label, reason="does_not_fit", delta=needs_text(tightest))
    slower = candidate.seconds / max(best.seconds, 1e-12) - 1.0
    reason = "slower" if slower > 0 else "not_preferred"
    return Rejected(option=label, reason=reason, delta=f"{slower:+.0%} step time".replace("-", "−"))


def _layout(graph: Graph, request: PlacementRequest, best: Candidate, pool: Pool, entry: RolePlacement) -> Decision:
    asked = any(entry.role in each.layouts for each in request.pools if each.name == pool.name)
    passed = () if asked else best.laid.passed_over.get(entry.role, ())
    devices = f"{len(pool.devices)} × {pool.device}"
    traits = TRAITS.get(graph.role(entry.role).backend or "")
    free = traits is not None and bool(traits.searched) and len(pool.devices) > 1
    reason = "asked_for" if asked else _reason_of_layout(best, pool, passed) if free else "only_option"
    text = f"{entry.role} on {devices}: {layout_text(entry.layout)}"
    return Decision(
        id="",
        what=f"layout of {entry.role}",
        chosen=layout_text(entry.layout),
        reason=reason,
        text=text,
        rejected=passed,
        override=f"placement.pools.{pool.name}.layouts.{entry.role}",
    )


def _reason_of_layout(best: Candidate, pool: Pool, passed: Sequence[Rejected]) -> str:
    if any(each.reason == "slower" for each in passed):
        return "fastest"
    over = any(each.pool == pool.name and each.peak_bytes > each.limit_bytes for each in best.laid.memory)
    return "nearest_to_fitting" if over else "smallest_that_fits"


def _residency(graph: Graph, cluster: Cluster, pool: Pool) -> Iterator[Decision]:
    if len(pool.roles) < 2:
        return
    is_cpu = any(group.device.is_cpu and group.device.name == pool.device for group in cluster.groups)
    for entry in pool.roles:
        asked = graph.role(entry.role).engine.offload is not None
        if is_cpu and not asked:
            continue
        chosen = "leaves the devices while others work" if entry.offloaded else "stays on the devices"
        needed = "not all roles of the pool fit at once" if entry.offloaded else "there is room"
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


def _has_adapters(graph: Graph, edge: Edge) -> bool:
    if edge.kind is not EdgeKind.WEIGHTS:
        return False
    models = {role.name: role.model for role in graph.roles}
    named = [models.get(end.split(".")[0]) for end in (edge.source, edge.target)]
    lora = {model.name for model in graph.models if model.lora is not None}
    return all(name in lora for name in named)


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


def _recompute(graph: Graph, best: Candidate, entry: RolePlacement) -> Decision:
    passed = _recompute_passed_over(best, entry.role)
    reason, why = _reason_of_recompute(graph, best, entry, passed)
    return Decision(
        id="",
        what=f"recompute of {entry.role}",
        chosen=entry.recompute,
        reason=reason,
        text=f"{entry.role} {_ACTIVATIONS[entry.recompute]} (recompute {entry.recompute}): {why}",
        rejected=() if passed is None else (passed,),
        override=f"roles.{entry.role}.engine.recompute",
    )


def _recompute_passed_over(best: Candidate, role: str) -> Rejected | None:
    """The placement that differs in this trainer's choice alone; None where the flow says what it wants."""
    for other in best.variants:
        differs = [name for name, value in other.recompute.items() if best.recompute[name] != value]
        if differs == [role]:
            return replace(_rejected(other, best), option=other.recompute[role])
    return None


def _reason_of_recompute(
    graph: Graph, best: Candidate, entry: RolePlacement, passed: Rejected | None
) -> tuple[str, str]:
    if graph.role(entry.role).engine.recompute is not None:
        return "asked_for", "the flow says so"
    if not best.laid.fits:
        return "nearest_to_fitting", "no choice fits"
    if entry.recompute == "none":
        return "fits", "there is room"
    if passed is not None and passed.reason != "does_not_fit":
        return "fastest", "the room that it frees saves more time than it takes"
    return "needed_to_fit", "they do not fit"
