"""Rows against ranks: each data-parallel rank of a collective needs a row, and shares that differ cost time.

Rows are shared out by their tokens, whole groups where a loss compares the samples of a prompt; micro-batches are cut
by tokens. So no count has to divide another but `updates` the prompts: a rank may have one row more than another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from flowrl.diag.diagnostic import Diagnostic, diagnose
from flowrl.graph.graph import Graph, Kind, Op
from flowrl.graph.params import UpdateParams
from flowrl.graph.signatures import LOSSES
from flowrl.placement.cost.workload import Workload
from flowrl.placement.request import Mode
from flowrl.plan.plan import Layout, Pool

COLLECTIVE = ("fsdp", "megatron")
"""Backends whose ranks meet in collectives: each of them needs a row."""
IDLE_SHARE = 0.1
"""An uneven share that leaves less than this of the ranks' time unused is not told."""


@dataclass(frozen=True, slots=True)
class Shares:
    """What the ranks of an op share out in one firing: `count` units of `size` rows each."""

    count: int
    size: int
    prompts: int
    samples: int

    @property
    def what(self) -> str:
        return "row" if self.size == 1 else "group"


def shares(work: Workload, op: Op) -> Shares:
    """Rows, or whole groups where the loss takes the samples of a prompt together."""
    rows = work.rows(op)
    prompts, samples = int(rows.prompts.value), int(rows.samples.value)
    whole = isinstance(op.params, UpdateParams) and LOSSES[op.params.loss].whole_groups
    return Shares(prompts, samples, prompts, samples) if whole else Shares(rows.count, 1, prompts, samples)


def starved(graph: Graph, work: Workload, pools: Sequence[Pool]) -> tuple[Op, Layout] | None:
    """The first op of a collective with fewer units than its role has data-parallel ranks, and the layout."""
    for op, layout in _placed(graph, pools):
        if graph.role(op.role).backend in COLLECTIVE and shares(work, op).count < layout.dp:
            return op, layout
    return None


def fewest_prompts(graph: Graph, work: Workload, pools: Sequence[Pool]) -> int:
    """Of a step in which each of these ranks still has a unit."""
    placed = _placed(graph, pools)
    fed = ((op, layout.dp) for op, layout in placed if graph.role(op.role).backend in COLLECTIVE)
    needed = (dp / max(1, shares(work, op).count) for op, dp in fed)
    return max(1, ceil(graph.step.prompts * max(needed, default=0)))


def more_ranks_than_rows(work: Workload, op: Op, layout: Layout) -> Diagnostic:
    """FR0507 for rows, FR0532 for groups, with the nearest sizes that give every rank one."""
    mine, dp = shares(work, op), layout.dp
    span = work.request.span or op.span
    facts: dict[str, Any] = {
        "op": op.id,
        "role": op.role,
        "dp": dp,
        "idle": dp - mine.count,
        "ranks": ranks_text(layout),
    }
    help = _nearest(work.graph, op, mine, dp)
    if mine.size > 1:
        return diagnose(
            "FR0532", span, groups=counted(mine.count, mine.what), samples=mine.samples, nearest=help, **facts
        )
    text = f"{counted(mine.prompts, 'prompt')} * {counted(mine.samples, 'sample')}"
    return diagnose("FR0507", span, rows=counted(mine.count, mine.what), sum=text, nearest=help, **facts)


def least_prompts(dp: int, samples: int, updates: int, *, whole_groups: bool = False) -> int:
    """The fewest prompts a step with which each of `updates` minibatches has a unit for every one of `dp` ranks."""
    return updates * (dp if whole_groups else -(-dp // samples))


def most_updates(dp: int, prompts: int, samples: int, *, whole_groups: bool = False) -> int | None:
    """The most updates that divide the prompts and leave each minibatch a unit for every rank; None if there are
    none."""
    size = 1 if whole_groups else samples
    legal = (updates for updates in range(prompts, 0, -1) if prompts % updates == 0)
    return next((updates for updates in legal if prompts // updates * size >= dp), None)


def even_ranks(count: int, ranks: int) -> tuple[int, ...]:
    """The nearest numbers of ranks below and above `ranks` among which `count` units share out evenly."""
    below = next((r for r in range(ranks - 1, 0, -1) if count % r == 0), None)
    above = next((r for r in range(ranks + 1, count + 1) if count % r == 0), None)
    return tuple(r for r in (below, above) if r is not None)


def idle_share(count: int, ranks: int) -> float:
    """Share of the ranks' time that is unused where all units take the same time and the fullest rank is waited for."""
    return 1 - count / (ranks * -(-count // ranks))


def warn_rows(graph: Graph, work: Workload, pools: Sequence[Pool]) -> tuple[Diagnostic, ...]:
    """FR0530 once for each role whose ranks share unevenly, FR0531 for engines that get no sample. A split that
    placement chose of itself was compared with others by its time, which counts whole rows: nothing to warn of."""
    worst: dict[str, tuple[float, Diagnostic]] = {}
    chosen = work.request.mode is Mode.AUTO and sum(bool(pool.devices) for pool in pools) > 1
    for op, layout in () if chosen else _placed(graph, pools):
        found = _uneven(graph, work, op, layout)
        if found is not None and found[0] > worst.get(op.role, (0.0, None))[0]:
            worst[op.role] = found
    return tuple(diagnostic for _, diagnostic in worst.values())


def _uneven(graph: Graph, work: Workload, op: Op, layout: Layout) -> tuple[float, Diagnostic] | None:
    mine, dp, role = shares(work, op), layout.dp, graph.role(op.role)
    if op.label is not None or mine.count == 0:
        return None
    span = work.request.span or op.span
    facts: dict[str, Any] = {"op": op.id, "role": op.role, "dp": dp, "ranks": ranks_text(layout)}
    if role.kind is Kind.GENERATOR:
        idle = dp - mine.count
        told: dict[str, Any] = {
            "samples": counted(mine.count, "sample"),
            "most": counted(mine.count, "engine"),
            "idle": idle,
        }
        return (idle / dp, diagnose("FR0531", span, **told, **facts)) if idle > 0 else None
    share = idle_share(mine.count, dp)
    if share < IDLE_SHARE or mine.count < dp:
        return None
    most, full = -(-mine.count // dp), mine.count % dp
    near = " or ".join(map(str, even_ranks(mine.count, dp)))
    told: dict[str, Any] = {
        "count": counted(mine.count, mine.what),
        "most": most,
        "less": most - 1,
        "full": full,
        "near": near,
    }
    return share, diagnose("FR0530", span, idle=f"{share:.0%}", **told, **facts)


def _placed(graph: Graph, pools: Sequence[Pool]) -> Iterator[tuple[Op, Layout]]:
    layouts = {entry.role: entry.layout for pool in pools if pool.devices for entry in pool.roles}
    yield from ((op, layouts[op.role]) for op in graph.ops if op.role in layouts)


def _nearest(graph: Graph, op: Op, mine: Shares, dp: int) -> str:
    """Edits that give every rank a unit: fewer ranks, more prompts, fewer updates."""
    whole = mine.size > 1
    ways = [f"at most {counted(mine.count, 'data-parallel rank')} for `{op.role}`"]
    updates = op.params.updates if isinstance(op.params, UpdateParams) else 1
    more = f" (a multiple of {updates})" if updates > 1 else ""
    ways.append(f"`step.prompts: {least_prompts(dp, mine.samples, updates, whole_groups=whole)}` or more{more}")
    fewer = most_updates(dp, graph.step.prompts, mine.samples, whole_groups=whole)
    if fewer is not None and updates > 1:
        ways.append(f"`updates: {fewer}`")
    return ", or ".join(ways)


def ranks_text(layout: Layout) -> str:
    """`16 devices / (tp 2 * pp 2) = 4`; `4 devices` where only dp divides them."""
    cuts = [f"{name} {size}" for name, size in (("tp", layout.tp), ("pp", layout.pp), ("cp", layout.cp)) if size > 1]
    each = layout.tp * layout.pp * layout.cp
    if not cuts:
        return f"{layout.dp} devices"
    inner = cuts[0] if len(cuts) == 1 else f"({' * '.join(cuts)})"
    return f"{layout.dp * each} devices / {inner} = {layout.dp}"


def counted(count: int, name: str) -> str:
    return f"{count:,} {name}{'' if count == 1 else 's'}"
