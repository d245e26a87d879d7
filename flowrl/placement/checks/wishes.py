"""Wishes of a request that exclude each other: pins, pools, and roles that stay apart. Each fault shows both places.

Takes a request; gives diagnostics. What no way to share the devices can meet together is for the search to tell.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from flowrl.diag.diagnostic import Diagnostic, Label, diagnose
from flowrl.diag.span import Span
from flowrl.graph.graph import Graph, Kind
from flowrl.placement.request import Mode, PlacementRequest

ALL, ROLLOUT, TRAIN = "all", "rollout", "train"


@dataclass(frozen=True, slots=True)
class _Home:
    """Where a role is wished to be, and where that is said."""

    pool: str
    span: Span | None
    words: str


def contradictions(graph: Graph, request: PlacementRequest) -> Iterator[Diagnostic]:
    """FR0508 and FR0520, each with the place of both wishes; FR0536 of a wish without a second role."""
    yield from _apart_from_nobody(request)
    yield from _pinned_elsewhere(request)
    yield from _pinned_to_all(request)
    yield from _pinned_without(graph, request)
    yield from list(_apart_in_one_pool(request)) or _apart_without_pools(request)


def _pins(request: PlacementRequest) -> dict[str, _Home]:
    return {
        role: _Home(pool, request.pin_spans.get(role, request.span), f"`{role}` is pinned to pool `{pool}`")
        for role, pool in request.pin.items()
    }


def _written(request: PlacementRequest) -> dict[str, _Home]:
    return {
        role: _Home(pool.name, pool.role_spans.get(role, pool.span), f"`{role}` is in pool `{pool.name}`")
        for pool in request.pools
        for role in pool.roles
    }


def _labels(homes: Sequence[_Home], but: Span | None = None) -> list[Label]:
    """Each place once, with its words."""
    found = {home.span: home.words for home in reversed(homes) if home.span is not None and home.span != but}
    return [Label(span, words) for span, words in reversed(found.items())]


def _fault(one: _Home, other: _Home, why: str, help: str) -> Diagnostic:
    return diagnose("FR0520", one.span, also=_labels([other], one.span), problem=one.words, why=why, help=help)


def _pinned_elsewhere(request: PlacementRequest) -> Iterator[Diagnostic]:
    """A pin to one pool of a role that is written into another."""
    written = _written(request)
    for role, home in _pins(request).items():
        if role in written and written[role].pool != home.pool:
            why = "a role has one state, which lives in one pool"
            yield _fault(home, written[role], why, f"remove `{role}` from `pin`, or from `{written[role].pool}`")


def _pinned_to_all(request: PlacementRequest) -> Iterator[Diagnostic]:
    """`all` is there only if it is the only pool."""
    if request.mode is Mode.POOLS:
        return
    pins = _pins(request)
    whole = next((home for home in pins.values() if home.pool == ALL), None)
    other = next((home for home in pins.values() if home.pool != ALL), None)
    if whole is not None and other is not None:
        why = "where placement chooses, `all` is the name of a pool that holds every role, so there is no other"
        yield _fault(other, whole, why, f"pin to `{ALL}` alone, or not at all")


def _pinned_without(graph: Graph, request: PlacementRequest) -> Iterator[Diagnostic]:
    """`rollout` has a generator and `train` a trainer: a role pinned there while all of them are pinned elsewhere."""
    if request.mode is Mode.POOLS:
        return
    pins = _pins(request)
    generators = [role.name for role in graph.roles if role.kind is Kind.GENERATOR]
    trainers = [role.name for role in graph.roles if role.trainable]
    for pool, own, word in ((ROLLOUT, generators, "generator"), (TRAIN, trainers, "trainer")):
        there = next((home for home in pins.values() if home.pool == pool), None)
        away = [pins[name] for name in own if name in pins and pins[name].pool not in (pool, ALL)]
        if there is not None and own and len(away) == len(own):
            why = f"pool `{pool}` is that of a {word}, and every {word} is pinned elsewhere"
            yield _fault(there, away[0], why, f"pin a {word} to `{pool}` too, or name another pool")
            return


def _apart_from_nobody(request: PlacementRequest) -> Iterator[Diagnostic]:
    for group, span in zip_longest(request.apart, request.apart_spans):
        if len(set(group)) < 2:
            named = f"`{group[0]}` alone" if group else "no role"
            yield diagnose("FR0536", span or request.span, roles=named)


def wishes(request: PlacementRequest) -> list[Label]:
    """Pins and roles apart, where they are written, with their words."""
    apart = [
        _Home("", span, f"{', '.join(f'`{role}`' for role in group)} stay apart")
        for group, span in zip_longest(request.apart, request.apart_spans)
    ]
    return _labels([*_pins(request).values(), *apart], request.span)


def _apart_in_one_pool(request: PlacementRequest) -> Iterator[Diagnostic]:
    homes: Mapping[str, _Home] = {**_written(request), **_pins(request)}
    for place, group in enumerate(request.apart):
        known = [homes[role] for role in group if role in homes]
        pools = [home.pool for home in known]
        shared = next((pool for pool in pools if pools.count(pool) > 1), None)
        whole = next((home.pool for home in homes.values() if home.pool == ALL), None)
        if shared is None and request.mode is not Mode.POOLS and len(group) > 1:
            shared = ALL if whole is not None or request.mode is Mode.COLOCATED else None
            known = [home for home in homes.values() if home.pool == ALL][:1]
        if shared is None:
            continue
        span = request.apart_spans[place] if place < len(request.apart_spans) else None
        also = _labels([home for home in known if home.pool == shared], span)
        yield diagnose("FR0508", span or request.span, also=also, roles=", ".join(group), pool=shared)


def _apart_without_pools(request: PlacementRequest) -> Iterator[Diagnostic]:
    """More roles apart than pools are written."""
    if request.mode is not Mode.POOLS:
        return
    count = len(request.pools)
    for place, group in enumerate(request.apart):
        if len(set(group)) > count:
            span = request.apart_spans[place] if place < len(request.apart_spans) else None
            pools = _Home("", request.pools[0].span, f"there {'is 1 pool' if count == 1 else f'are {count} pools'}")
            apart = _Home("", span or request.span, f"{len(group)} roles are to stay apart")
            why = f"roles that stay apart need a pool each: {len(group)} > {count}"
            yield _fault(apart, pools, why, "write more pools, or keep fewer roles apart")
