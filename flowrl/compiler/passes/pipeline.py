"""The order of the passes. Each is a pure function Graph → Graph in a file of its own name; the verifier runs after
every one of them, instruments (timing, dump) hook around them. Passes know no hardware and no files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from msgspec.structs import replace

from flowrl.compiler.passes.balance_rates import balance_rates
from flowrl.compiler.passes.bound_lag import bound_lag, warn_lag
from flowrl.compiler.passes.canonicalize import canonicalize
from flowrl.compiler.passes.check_lengths import check_lengths, warn_episodes
from flowrl.compiler.passes.check_liveness import check_liveness
from flowrl.compiler.passes.check_sampling import check_sampling, warn_sampling
from flowrl.compiler.passes.check_waits import check_waits, warn_waits
from flowrl.compiler.passes.cover_routes import cover_routes
from flowrl.compiler.passes.fuse_forwards import fuse_forwards
from flowrl.compiler.passes.infer_granularity import infer_granularity
from flowrl.compiler.passes.infer_types import infer_types
from flowrl.compiler.passes.insert_log_probs import insert_log_probs
from flowrl.compiler.passes.insert_weight_sync import insert_weight_sync, warn_unsynced
from flowrl.compiler.passes.match_rows import match_rows
from flowrl.compiler.passes.order_filters import order_filters
from flowrl.compiler.passes.prune_dead import prune_dead, warn_unread
from flowrl.compiler.passes.refuse_cycles import refuse_cycles
from flowrl.compiler.passes.share_weights import share_weights
from flowrl.diag.diagnostic import Diagnostic, InternalError
from flowrl.graph.graph import Graph
from flowrl.graph.verify import verify

PARTS = ("models", "roles", "ops", "declared", "edges", "removed", "step", "schedule")
"""What passes change of a graph."""

Warn = Callable[[Graph], tuple[Diagnostic, ...]]


@dataclass(frozen=True, slots=True)
class Pass:
    """A pass and its contract: `requires` names the passes that must have run; what it ensures, the verifier checks
    from then on. `warn` looks at the graph before the pass and says what is legal but likely not meant."""

    run: Callable[[Graph], Graph]
    requires: tuple[str, ...] = ()
    warn: Warn | None = None

    @property
    def name(self) -> str:
        return self.run.__name__


class Instrument(Protocol):
    """Hooks around each pass: they watch, they never change the graph."""

    def before(self, name: str, graph: Graph) -> None: ...

    def after(self, name: str, graph: Graph) -> None: ...


PASSES: tuple[Pass, ...] = (
    Pass(refuse_cycles),
    Pass(match_rows, requires=("refuse_cycles",)),
    Pass(infer_types, requires=("refuse_cycles",)),
    Pass(cover_routes, requires=("infer_types",)),
    Pass(balance_rates, requires=("infer_types",)),
    Pass(insert_log_probs, requires=("infer_types", "balance_rates")),
    Pass(order_filters, requires=("insert_log_probs",)),
    Pass(prune_dead, requires=("insert_log_probs", "order_filters"), warn=warn_unread),
    Pass(fuse_forwards, requires=("prune_dead",)),
    Pass(share_weights, requires=("prune_dead",)),
    Pass(insert_weight_sync, requires=("prune_dead",), warn=warn_unsynced),
    Pass(infer_granularity, requires=("infer_types",)),
    Pass(bound_lag, requires=("insert_weight_sync",), warn=warn_lag),
    Pass(check_liveness, requires=("balance_rates", "insert_weight_sync")),
    Pass(check_lengths, requires=("infer_types",), warn=warn_episodes),
    Pass(check_sampling, requires=("insert_log_probs", "insert_weight_sync"), warn=warn_sampling),
    Pass(check_waits, requires=("insert_weight_sync",), warn=warn_waits),
    Pass(canonicalize, requires=("insert_weight_sync",)),
)


def run_passes(
    graph: Graph, instruments: Sequence[Instrument] = (), passes: Sequence[Pass] = PASSES
) -> tuple[Graph, tuple[Diagnostic, ...]]:
    """The graph after all passes, and the warnings found on the way.

    FlowError: the flow is at fault. InternalError: a pass broke an invariant; it names the passes already applied.
    """
    warnings: list[Diagnostic] = []
    _verified(graph, "lowering")
    for step in passes:
        missing = [name for name in step.requires if name not in graph.passes]
        if missing:
            raise InternalError(f"pass {step.name} requires {', '.join(missing)}; applied: {', '.join(graph.passes)}")
        for instrument in instruments:
            instrument.before(step.name, graph)
        if step.warn is not None:
            warnings.extend(step.warn(graph))
        changed = _sharing(graph, step.run(graph))
        graph = _verified(replace(changed, passes=(*graph.passes, step.name)), step.name)
        for instrument in instruments:
            instrument.after(step.name, graph)
    return graph, tuple(warnings)


def _sharing(before: Graph, after: Graph) -> Graph:
    """The graph after a pass, with the very parts of the graph before that the pass left equal: what holds of those
    alone is known, and not looked at again (graph/once.py)."""
    pairs = ((name, getattr(before, name), getattr(after, name)) for name in PARTS)
    equal = {name: old for name, old, new in pairs if old is not new and old == new}
    return replace(after, **equal) if equal else after


def _verified(graph: Graph, name: str) -> Graph:
    broken = verify(graph)
    if broken:
        applied = ", ".join(graph.passes) or "none"
        raise InternalError(f"after {name} (applied: {applied}): {'; '.join(broken)}")
    return graph
