"""A weights edge as the steps that it is made of, each with what both ends hold on a device then.

Takes the ends of an edge that are in one pool; gives names and ledger lines, or bytes. Bytes per link and times are
elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from flowrl.graph.graph import Edge
from flowrl.machine.sync import DIRECT
from flowrl.placement.memory.sides import Side, T


def sync_phases(
    edge: Edge, source: Side[T] | None, target: Side[T] | None, stages: Mapping[str, int], zero: T
) -> Iterator[tuple[str, bool, T]]:
    """Name, whether the receiver is at work, and what both ends hold in each step, in order. An end that is not in the
    pool is None; `stages` are those of a device. Steps: `send_weights A => B`, `wake_weights`, `receive_weights`,
    `wake_cache`.

    An engine that may sleep wakes its weights, takes the new ones and only then makes its cache (tagged wake-up,
    vllm-project/vllm#15254); one that cannot has its cache from the start. By a direct transport both ends are on the
    device until the weights are in (verl-project/verl#302).
    """
    name = f"{edge.source.split('.')[0]} => {edge.target.split('.')[0]}"
    mine = zero if source is None else source.resident(stages[source.name])
    if source is not None:
        beside = zero if target is None else target.left(stages[target.name])
        yield f"send_weights {name}", False, mine + source.sent() + beside
    if target is None:
        return
    together = source is not None and (edge.transport in DIRECT or not source.offloaded)
    beside = mine if together else zero
    whole = target.resident(stages[target.name])
    if not target.staged:
        yield f"receive_weights {name}", True, whole + target.received() + beside
        return
    awake = target.awake()
    yield f"wake_weights {name}", True, awake + beside
    yield f"receive_weights {name}", True, awake + target.received() + beside
    yield f"wake_cache {name}", True, whole + (zero if source is None or source.offloaded else beside)
