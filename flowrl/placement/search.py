"""Evaluates every option of a request and ranks them. No explanations: decisions.py and infeasible.py tell them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from flowrl.diag.diagnostic import Diagnostic, FlowError, diagnose
from flowrl.graph.graph import EdgeKind, Graph
from flowrl.machine.cluster import Cluster
from flowrl.machine.shape import ModelShape
from flowrl.placement.checks.request import check_request
from flowrl.placement.checks.rows import more_ranks_than_rows, starved
from flowrl.placement.checks.sharding import copies_fault
from flowrl.placement.cost.placed import sides
from flowrl.placement.cost.workload import Workload
from flowrl.placement.layouts import Laid, Layouts
from flowrl.placement.options import Option, options
from flowrl.placement.recompute import choices
from flowrl.placement.request import PlacementRequest
from flowrl.placement.time.step import step_seconds


@dataclass(frozen=True, slots=True)
class Candidate:
    option: Option
    laid: Laid
    seconds: float
    starved: bool
    """Whether some rank would have no row."""
    recompute: Mapping[str, str] = field(default_factory=dict[str, str])
    """By trainer, for those whose flow leaves it open."""
    variants: tuple[Candidate, ...] = ()
    """The same option with every other choice of `recompute`."""

    def rank(self) -> tuple[bool, bool, float]:
        """The smaller the better: every rank has rows, it fits, it is fast (or, if nothing fits, near to fitting)."""
        tightest = self.laid.tightest
        over = 0.0 if tightest is None else tightest.peak_bytes / max(1, tightest.limit_bytes)
        return self.starved, not self.laid.fits, self.seconds if self.laid.fits else over


def search(
    graph: Graph,
    cluster: Cluster,
    request: PlacementRequest,
    shapes: Mapping[str, ModelShape],
    *,
    only: str | None = None,
) -> tuple[Candidate, list[Candidate]]:
    """The best candidate and that of each option, in their order; of the option labelled `only`, if it is given.
    Raises FlowError as `place` says."""
    check_request(graph, cluster, request, shapes)
    work = Workload(graph, shapes, request)
    layouts = Layouts(work, cluster)
    found = [option for option in options(graph, cluster, request) if only in (None, option.label)]
    if not found:
        raise FlowError(_nothing_left(graph, cluster, request))
    uncopied = [_uncopied(graph, option) for option in found]
    found = [option for option, fault in zip(found, uncopied, strict=True) if fault is None]
    if not found:
        raise FlowError(next(fault for fault in uncopied if fault is not None))

    def candidate(option: Option, recompute: Mapping[str, str]) -> Candidate:
        laid = layouts.lay_out(option, recompute)
        seconds = step_seconds(graph, laid.pools, shapes, cluster, request, costs=layouts.costs)
        return Candidate(option, laid, seconds, starved(graph, work, laid.pools) is not None, recompute)

    tried = [_best_of([candidate(option, choice) for choice in choices(graph)]) for option in found]
    at = min(range(len(tried)), key=lambda place: tried[place].rank())
    best = tried[at] = replace(tried[at], laid=layouts.told(tried[at].laid))
    short = starved(graph, work, best.laid.pools)
    if short is not None:
        raise FlowError(more_ranks_than_rows(work, *short))
    return best, tried


def _best_of(variants: Sequence[Candidate]) -> Candidate:
    """The best of one option's candidates, with the others: the first of equals, which recomputes least."""
    best = min(variants, key=Candidate.rank)
    return replace(best, variants=tuple(each for each in variants if each is not best))


def _uncopied(graph: Graph, option: Option) -> Diagnostic | None:
    """FR0450 of the first role whose `shard_devices` no layout of its pool shares out."""
    sizes = ((name, len(pool.devices)) for pool in option.pools for name in pool.roles if name not in pool.layouts)
    faults = (copies_fault(graph.role(name), count) for name, count in sizes)
    return next((fault for fault in faults if fault is not None), None)


def _nothing_left(graph: Graph, cluster: Cluster, request: PlacementRequest) -> Diagnostic:
    devices = cluster.device_count
    why = f"{cluster.name} has {devices} device{'s' if devices > 1 else ''}"
    span, apart = request.span, sides(graph)
    if request.pin or request.apart:
        why += ", and `pin` and `apart` exclude every way to share them"
    elif apart:
        names = " and ".join(f"`{name}`" for name in apart[0])
        why += f", and {names} answer each other within an episode, so each needs devices of its own"
        span = span or next((e.span for e in graph.edges if e.kind is EdgeKind.INTERACTION), None)
    else:
        why += ", and generators and trainers need one each at least"
    return diagnose("FR0514", span, asked=f"`placement: {request.mode}`", why=why)
