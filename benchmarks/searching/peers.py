"""The section of peers: our plan of every preset beside the placements that other systems give it.

Each placement of a peer is a flow with explicit pools, placed and timed by the same planner, which is free to choose
layouts, offloading and recomputation there as well. Ours may never be slower than the best of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from msgspec.structs import replace

from benchmarks.searching.outcome import Outcome, Progress
from benchmarks.searching.presets import GPUS, MODELS, PRESETS, Given, given
from flowrl.diag.diagnostic import FlowError
from flowrl.graph.graph import Kind
from flowrl.placement.request import LayoutRequest, Mode, PoolRequest
from flowrl.placement.search import search

SAME = 1e-9
Pools = tuple[PoolRequest, ...]
PEERS = ("all colocated", "actor/rollout split", "every role standalone", "verl", "OpenRLHF", "ROLL")
BY_CONSTRUCTION = (
    "what it does not prove to be worse, the search settles as peers publish it (search/published.py) and starts from: "
    "that no plan is slower holds in part by construction, and the gains are what it adds"
)
QUICK_PRESETS, QUICK_GPUS, QUICK_MODELS = ("grpo", "ppo"), (8, 16), ("7B",)


def section(*, quick: bool = False) -> Outcome:
    outcome, progress = Outcome("peers"), Progress("peers")
    cases = [
        (preset, size, gpus)
        for preset in (QUICK_PRESETS if quick else PRESETS)
        for size in (QUICK_MODELS if quick else MODELS)
        for gpus in (QUICK_GPUS if quick else GPUS)
    ]
    for number, case in enumerate(cases, 1):
        outcome.rows.append(_row(given(*case), *case))
        progress.tell(number, len(cases))
    _tell(outcome)
    return outcome


def _row(case: Given, preset: str, size: str, gpus: int) -> dict[str, object]:
    ours, gap = _placed(case, None)
    peers: dict[str, float | None] = {}
    for peer, pools in placements(case):
        seconds, _ = _placed(case, pools)
        known = peers.get(peer)
        peers[peer] = known if seconds is None else seconds if known is None else min(known, seconds)
    fitting = [each for each in peers.values() if each is not None]
    best = min(fitting, default=None)
    return {
        "preset": preset,
        "model": size,
        "gpus": gpus,
        "ours": ours,
        "gap": gap,
        "peers": peers,
        "best": best,
        "gain": None if ours is None or best is None else best / ours - 1,
    }


def _placed(case: Given, pools: Pools | None) -> tuple[float | None, float]:
    """Seconds of a step and the reported gap; None for seconds where nothing fits or the planner refuses it."""
    request = case.request if pools is None else replace(case.request, mode=Mode.POOLS, pools=pools)
    try:
        found = search(case.graph, case.cluster, request, case.shapes)
    except FlowError:
        return None, 0.0
    best = found.best
    return (best.seconds if best.laid.fits and not best.starved else None), found.gap


# -- what peers do ----------------------------------------------------------------------------------------------------


def placements(case: Given) -> Iterator[tuple[str, Pools]]:
    """Placements by peer; of one that may be had in several sizes, all of them."""
    devices, roles = case.cluster.device_count, case.roles
    generators = tuple(role for role in roles if case.graph.role(role).kind is Kind.GENERATOR)
    others = tuple(role for role in roles if role not in generators)
    yield "all colocated", _pools({roles: devices})
    two = LayoutRequest(tp=2)
    yield "verl", _pools({roles: devices}, dict.fromkeys(generators, two))
    if not generators or not others:
        return
    for count in _halves_and_nodes(devices):
        yield "actor/rollout split", _pools({generators: count, others: devices - count})
    each = [(role,) for role in roles]
    yield from (("every role standalone", found) for found in _in_shares(each, [1] * len(each), devices))
    halves = [len(others) if role in generators else 1 for role in roles]
    yield from (("every role standalone", found) for found in _in_shares(each, halves, devices))
    yield from (("OpenRLHF", found) for found in _openrlhf(case, generators, devices))
    yield from (("ROLL", found) for found in _roll(case, generators, others, devices))


def _openrlhf(case: Given, generators: tuple[str, ...], devices: int) -> Iterator[Pools]:
    """A group of its own for each model, of equal sizes as in its examples of train_ppo_ray, or with half of that for
    those that do not train; and its documented pairs: actor with reference, critic with reward, engines alone."""
    each = [(role,) for role in case.roles]
    trains = [case.graph.role(role).trainable or role in generators for role in case.roles]
    yield from _in_shares(each, [1] * len(each), devices)
    yield from _in_shares(each, [2 if trained else 1 for trained in trains], devices)
    graded = {role for role in case.roles if case.graph.role(role).kind is Kind.REWARD or "critic" in role}
    actor = tuple(role for role in case.roles if role not in graded and role not in generators)
    groups = [group for group in (generators, actor, tuple(role for role in case.roles if role in graded)) if group]
    yield from _in_shares(groups, [1] * len(groups), devices)


def _roll(case: Given, generators: tuple[str, ...], others: tuple[str, ...], devices: int) -> Iterator[Pools]:
    """device_mapping of its examples: all on all devices; a judge on a quarter of them (rlvr on 8 GPUs: 0-5 and 6-7);
    asynchronous, engines on a third or a fifth of the devices (16 and 8; 256 and 64)."""
    yield _pools({case.roles: devices})
    judges = tuple(role for role in case.roles if case.graph.role(role).kind is Kind.REWARD)
    rest = tuple(role for role in case.roles if role not in judges)
    if judges:
        yield from _in_shares([rest, judges], [3, 1], devices)
        trains = tuple(role for role in others if role not in judges)
        yield from _in_shares([trains, generators, judges], [2, 1, 1], devices)
    yield from _in_shares([others, generators], [2, 1], devices)
    yield from _in_shares([others, generators], [4, 1], devices)


def _halves_and_nodes(devices: int) -> list[int]:
    """Whole nodes for the engines; of one node its halves, quarters and eighths."""
    if devices <= 8:
        return [1, 2, devices // 2, devices - 2, devices - 1]
    return sorted({*range(8, devices, 8), devices // 2})


def _in_shares(groups: Sequence[tuple[str, ...]], shares: Sequence[int], devices: int) -> Iterator[Pools]:
    """Pools of about these shares: within a node a power of two, above it whole nodes. Nothing if there are too few."""
    whole = sum(shares)
    sizes = [_even(devices * share // whole) for share in shares]
    if all(sizes) and sum(sizes) <= devices:
        yield _pools(dict(zip(groups, sizes, strict=True)))


def _even(count: int) -> int:
    if count >= 8:
        return count - count % 8
    return 1 << count.bit_length() - 1 if count else 0


def _pools(sizes: Mapping[tuple[str, ...], int], layouts: Mapping[str, LayoutRequest] | None = None) -> Pools:
    layouts = layouts or {}
    return tuple(
        PoolRequest(
            name=f"p{place}",
            gpus=count,
            roles=roles,
            layouts={each: layouts[each] for each in roles if each in layouts},
        )
        for place, (roles, count) in enumerate(sizes.items())
    )


# -- what came out ----------------------------------------------------------------------------------------------------


def _tell(outcome: Outcome) -> None:
    rows = outcome.rows
    gains = sorted(row["gain"] for row in rows if row["gain"] is not None)
    worse = [row for row in rows if row["gain"] is not None and row["gain"] < -SAME]
    lost = [row for row in rows if row["ours"] is None and row["best"] is not None]
    alone = sum(row["ours"] is not None and row["best"] is None for row in rows)
    if gains:
        best = max((row for row in rows if row["gain"] is not None), key=lambda row: row["gain"])
        where = f"{best['preset']} {best['model']} on {best['gpus']}"
        outcome.lines.append(
            f"gain over the best of them: least {gains[0]:+.1%}, median {median(gains):+.1%}, most {gains[-1]:+.1%} "
            f"({where}); the same step in {sum(abs(gain) <= SAME for gain in gains)} of {len(gains)}"
        )
    outcome.lines.append(BY_CONSTRUCTION)
    planned, gaps = sum(row["ours"] is not None for row in rows), [row["gap"] for row in rows if row["gap"] > SAME]
    outcome.lines.append(
        f"{len(rows)} cases: {planned} have a plan, {alone} of which no peer places; "
        f"{len(gaps)} plans with a reported gap, of {max(gaps, default=0.0):.1%} at most"
    )
    outcome.lines.append(f"{'':<24}{'places':>8}{'cannot':>8}{'median gain':>13}{'most':>10}  ours is faster in")
    for peer in PEERS:
        pairs = [(row["ours"], row["peers"][peer]) for row in rows if peer in row["peers"] and row["ours"] is not None]
        over = [theirs / ours - 1 for ours, theirs in pairs if theirs is not None]
        placed = f"{len(over):>8}{len(pairs) - len(over):>8}"
        middle = f"{median(over):>+13.1%}{max(over):>+10.1%}" if over else f"{'':>23}"
        outcome.lines.append(f"{peer:<24}{placed}{middle}  {sum(each > SAME for each in over)} of {len(over)}")
    for row in [*worse, *lost][:10]:
        outcome.lines.append(f"  worse: {row['preset']} {row['model']} on {row['gpus']}: {row['ours']}, {row['peers']}")
    count = len(worse) + len(lost)
    outcome.bar("plans slower than the best of the peers", f"{count} of {len(rows)}", "0", count == 0)
