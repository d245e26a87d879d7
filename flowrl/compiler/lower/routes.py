"""Rewards made of other rewards: what routers and combinations name, and the inner calls of routers and judges.

A router is fed once; each reward it routes to is fed the same, and the router reads it. So is a judge, and its inner
call asks the model. These edges are derived: shown, never written. Which value of the column goes where, and whether
every value has a reward, is seen by the graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from msgspec.structs import replace

from flowrl.compiler.lower.edges import CallSite, parse_name
from flowrl.compiler.lower.stage import Stage
from flowrl.diag.span import Span
from flowrl.graph.algorithms import backward, find_cycle, reachable
from flowrl.graph.graph import Edge, EdgeKind, Input, Op
from flowrl.graph.judges import ASKS
from flowrl.graph.params import ScoreParams
from flowrl.graph.routes import route_of
from flowrl.spec.roles import RouterDocument
from flowrl.spec.schema import FunctionRole, RewardRole

Parts = Mapping[str, Mapping[str, str]]
"""Reward role → key of its block → the role that the key names."""


def check_rewards(stage: Stage) -> None:
    """FR0201 and FR0226 for a route or a part that names no reward, FR0234 for a block without entries, FR0233 for
    rewards that are made of each other."""
    parts = _parts(stage)
    for name, block in parts.items():
        word = _block(stage, name)
        if not block:
            stage.refuse("FR0234", stage.span("roles", name, *word), role=name, block=word[0])
        for key, reward in block.items():
            _check_part(stage, name, word, key, reward)
    _check_round(stage, parts)


def routed(stage: Stage, edges: Iterable[Edge], sites: dict[str, CallSite]) -> tuple[Edge, ...]:
    """The edges with those of inner calls behind them, those of inner calls' own too; adds the sites of inner calls.
    FR0340 for an edge from an inner call to its router that is written."""
    found = {edge.id: edge for edge in edges}
    known = -1
    while known != len(found):
        known = len(found)
        for site in tuple(sites.values()):
            _route(stage, site, found, sites)
            _ask(stage, site, found, sites)
    return tuple(found.values())


def without_untaken(ops: Iterable[Op], declared: Iterable[Edge]) -> list[Op]:
    """Routers read the rewards that their call makes: those of routes which no sample of it takes are left out."""
    drawn = {(edge.source, edge.target) for edge in declared}

    def takes(op: Op, input: Input) -> bool:
        label = "" if op.label is None else f"@{op.label}"
        return input.slot != input.chosen or (f"{input.slot}.score{label}", op.id) in drawn

    routers = (isinstance(op.params, ScoreParams) and "router" in op.params.extra for op in ops)
    return [
        replace(op, inputs=tuple(i for i in op.inputs if takes(op, i))) if is_router else op
        for op, is_router in zip(ops, routers, strict=True)
    ]


def _route(stage: Stage, site: CallSite, found: dict[str, Edge], sites: dict[str, CallSite]) -> None:
    role = stage.document.roles.get(site.name.role)
    if not isinstance(role, RewardRole) or role.router is None or site.name.method != "score":
        return
    tags = _tags(stage, site, role.router.by, found.values())
    label = _label(site)
    routes = {f"{reward}.score{label}": span for reward, span in _routes(stage, site.name.role, role.router, tags)}
    _call(stage, site, routes, found, sites)


def _ask(stage: Stage, site: CallSite, found: dict[str, Edge], sites: dict[str, CallSite]) -> None:
    """The inner call of a judge: of the same role, at the same label."""
    name = site.name
    role = stage.document.roles.get(name.role)
    if isinstance(role, RewardRole) and role.judge is not None and name.method in ASKS:
        span = stage.key_span("roles", name.role, "judge")
        _call(stage, site, {f"{name.role}.{ASKS[name.method]}{_label(site)}": span}, found, sites)


def _call(
    stage: Stage,
    site: CallSite,
    inner: Mapping[str, Span | None],
    found: dict[str, Edge],
    sites: dict[str, CallSite],
) -> None:
    """Inner calls of a call, each with the place that names it: fed what the call is fed, and read by it."""
    into = [e for e in found.values() if e.target == site.name.text and e.kind is EdgeKind.DATA]
    for edge in (e for e in into if e.source in inner and not e.derived):
        fix = f"delete this edge: `{site.name.text}` calls `{edge.source}` and reads it"
        stage.refuse("FR0340", edge.span, inner=edge.source, caller=site.name.text, fix=fix)
    feeds = [e for e in into if e.source not in inner]
    for id, span in inner.items():
        sites.setdefault(id, CallSite(parse_name(id), span, derived=True))
        for edge in (*(_fed(feed, id, span) for feed in feeds), _read(id, site.name.text, span)):
            found.setdefault(edge.id, edge)


def _label(site: CallSite) -> str:
    return "" if site.name.label is None else f"@{site.name.label}"


def _routes(
    stage: Stage, router: str, document: RouterDocument, tags: frozenset[str] | None
) -> Iterator[tuple[str, Span | None]]:
    """The rewards that samples of a call go to, each once, with the first place that names it."""
    taken = None if tags is None else {route_of(document.routes, tag) for tag in tags}
    seen: set[str] = set()
    for value, reward in document.routes.items():
        is_taken = taken is None or reward in taken
        if is_taken and reward not in seen and isinstance(stage.document.roles.get(reward), RewardRole):
            seen.add(reward)
            yield reward, stage.span("roles", router, "router", "routes", value)


def _tags(stage: Stage, site: CallSite, by: str, edges: Iterable[Edge]) -> frozenset[str] | None:
    """The values that a call can meet, where its column is the tag of the one mix above it; None: not known here."""
    links = [(e.source, e.target) for e in edges if e.kind is EdgeKind.DATA]
    links += [(e.target, e.source) for e in edges if e.kind is EdgeKind.INTERACTION]
    above = reachable([site.name.text], backward([*links, *_resets(stage, edges)]))
    sets = [stage.document.data[parse_name(end).method] for end in above if parse_name(end).role == "data"]
    column = by.rpartition(".")[2]
    rewritten = any(isinstance(role, FunctionRole) and column in role.outputs for role in stage.document.roles.values())
    if rewritten or len(sets) != 1 or sets[0].mix is None or sets[0].tag != column:
        return None
    return frozenset(sets[0].mix)


def _resets(stage: Stage, edges: Iterable[Edge]) -> Iterator[tuple[str, str]]:
    """From each environment's reset to its step."""
    for edge in edges:
        name = parse_name(edge.target)
        if edge.kind is EdgeKind.INTERACTION and name.method == "step":
            yield edge.target.replace(f"{name.role}.step", f"{name.role}.reset"), edge.target


def _fed(feed: Edge, inner: str, span: Span | None) -> Edge:
    """The inner call is fed what its caller is fed, and as often."""
    origin = (*feed.origin, feed.id)
    return replace(feed, id=f"{feed.source} -> {inner}", target=inner, origin=origin, derived=True, span=span)


def _read(inner: str, router: str, span: Span | None) -> Edge:
    return Edge(id=f"{inner} -> {router}", kind=EdgeKind.DATA, source=inner, target=router, derived=True, span=span)


def _parts(stage: Stage) -> Parts:
    found: dict[str, Mapping[str, str]] = {}
    for name, role in stage.document.roles.items():
        if not isinstance(role, RewardRole):
            continue
        if role.router is not None:
            found[name] = role.router.routes
        if role.combine is not None:
            found[name] = {part: part for part in role.combine}
    return found


def _block(stage: Stage, name: str) -> tuple[str, ...]:
    """The path of its entries within the role."""
    role = stage.document.roles[name]
    return ("router", "routes") if isinstance(role, RewardRole) and role.router is not None else ("combine",)


def _check_part(stage: Stage, name: str, word: tuple[str, ...], key: str, reward: str) -> None:
    of_route = word[0] == "router"
    span = (stage.span if of_route else stage.key_span)("roles", name, *word, key)
    role = stage.document.roles.get(reward)
    if role is None:
        stage.refuse_name("FR0201", span, reward, _rewards(stage, name))
    elif not isinstance(role, RewardRole):
        known = ", ".join(_rewards(stage, name)) or "there is none"
        what = "a route leads to" if of_route else "a combination adds up"
        article = "an" if role.kind[0] in "aeiou" else "a"
        stage.refuse("FR0226", span, name=reward, kind=f"{article} {role.kind}", what=what, known=known)


def _check_round(stage: Stage, parts: Parts) -> None:
    """FR0233 once a cycle."""
    left = {(name, reward) for name, block in parts.items() for reward in block.values() if reward in parts}
    while cycle := find_cycle(sorted({end for pair in left for end in pair}), left):
        name, following = cycle[0], (*cycle, cycle[0])[1]
        key = next(key for key, reward in parts[name].items() if reward == following)
        path = " -> ".join(f"`{each}`" for each in (*cycle, cycle[0]))
        span = stage.span if _block(stage, name)[0] == "router" else stage.key_span
        stage.refuse("FR0233", span("roles", name, *_block(stage, name), key), role=name, path=path)
        left.discard((name, following))


def _rewards(stage: Stage, but: str) -> list[str]:
    roles = stage.document.roles
    return [name for name, role in roles.items() if isinstance(role, RewardRole) and name != but]
